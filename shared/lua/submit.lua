-- Accept a turn. idempotency: the idempotency key's string, read if idempotent is '1'; due (or none).
-- agent, user: whose it is; create: '1' if the session may be made here; busy: the mode; parked_policy: the agent's `parked`;
-- max_waiting, max_live: of the session; request; response: its id; deadline_ms: from now, 0 for none; digest: of what is
-- asked; trace; memory_turns: most turns in memory; look_ms: after which a rescuer looks at the task; ref: the task's;
-- metadata: of the response, or ''; known_look: see hint_used; entries: the user's message and the response's first events.
-- → launch n epoch first | waits epoch first | same task digest
--   | looked op | files_missing | missing | foreign | busy task status | interrupt task | full
local prior = redis.call('HMGET', TASK, 'status', 'submit_op', 'submit_launch', 'first', 'digest', 'looked')
if prior[1] then
  if prior[2] ~= OP then
    return { 'same', TID, prior[5] or '' }
  elseif prior[3] == '0' then
    return { 'waits', session()[1], prior[4] }
  end
  return { 'launch', prior[3], session()[1], prior[4] }
end
if idempotent == '1' then
  local known = redis.call('GET', idempotency)
  if known then
    local at = string.find(known, ' ', 1, true)
    return { 'same', string.sub(known, 1, at - 1), string.sub(known, at + 1) }
  end
end
local used = hint_used(prior[6], known_look)
if used then
  return used
elseif files_missing() then
  return { 'files_missing' }
end

local meta = redis.call('HMGET', META, 'agent', 'user', 'active', 'hold', 'asked', 'turns', 'turns_since', 'files')
if not meta[1] then
  if create ~= '1' then
    return { 'missing' }
  end
  make(agent, user)
  meta = { agent, user, '' }
end
if meta[1] ~= agent or (user ~= '' and meta[2] ~= '' and meta[2] ~= user) then
  return { 'foreign' }
end

if redis.call('ZCARD', LIVE) >= tonumber(max_live) and slow_paths().first_needed() and redis.call('ZCARD', LIVE) >= tonumber(max_live) then
  return { 'full' }
end

local launch, turn_of = '1', meta[3]
if busy ~= 'parallel' then
  local active = meta[3]
  local status = active ~= '' and redis.call('HGET', sibling(TASK, active), 'status')
  if status and not TERMINAL[status] then
    if busy == 'reject' then
      return { 'busy', active, status }
    elseif busy == 'interrupt' or (status == 'parked' and parked_policy == 'supersede') then
      return { 'interrupt', active }
    elseif redis.call('LLEN', WAITING) >= tonumber(max_waiting) then
      return { 'full' }
    end
    redis.call('RPUSH', WAITING, TID)
    launch = '0'
  else
    turn_of = TID
  end
end

local first = int(session(true)[2] + 1)
detect_loss()
local epoch = session()[1]
local deadline = '0'
if deadline_ms ~= '0' then
  deadline = int(NOW + tonumber(deadline_ms))
end
redis.call('ZADD', LIVE, first, TID)
-- For the owner's count: requests of live turns, and turns whose hashes may be there still.
local turns = tonumber(meta[6] or '0')
if not meta[7] or NOW - tonumber(meta[7]) > TTL then
  redis.call('HSET', META, 'turns_before', int(turns), 'turns_since', int(NOW))
  turns = 0
end
redis.call('HSET', META, 'active', turn_of, 'remember', memory_turns, 'asked', int((tonumber(meta[5]) or 0) + #request),
  'turns', int(turns + 1))
local _, _, number = write(entries_at, '0')
redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'attempt', '0', 'ran', '0', 'number', number, 'epoch', epoch,
  'first', first, 'agent', agent, 'user', user, 'request', request, 'response', response,
  'submitted', int(NOW), 'launched', int(NOW), 'deadline', deadline, 'crashes', '0', 'pending', '0',
  'trace', trace, 'metadata', metadata, 'digest', digest, 'submit_op', OP, 'submit_launch', launch, 'fresh', int(NOW))
local life = lifetime(meta[4])
if idempotent == '1' then
  redis.call('SET', idempotency, TID .. ' ' .. digest, 'PX', life)
  redis.call('HSET', TASK, 'idem', idempotency)
end
touch_session(life, meta[8])
redis.call('PEXPIRE', TASK, life)
-- Not before the task is there: a look that finds nothing is the last one.
remind(due, ref, look_ms)
if launch == '0' then
  return { 'waits', epoch, first }
end
return { 'launch', launch, epoch, first }
