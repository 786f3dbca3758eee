-- Accept a turn. KEYS 10 the idempotency key's string  11 due (or none)
-- ARGV 7 agent  8 user  9 '1' if the session may be made here  10 busy mode  11 parked policy
--      12 most waiting  13 request  14 response id  15 deadline ms from now (0: none)
--      16 digest of what is asked  17 trace  18 most turns in memory
--      19 ms after which a rescuer looks at the task  20 ref
--      21 metadata of the response (or '')  22 most live  23 '1' if there is an idempotency key  24… entries
-- → launch n epoch first | waits epoch first | same task digest
--   | lacking | missing | foreign | busy task status | interrupt task | full
local prior = redis.call('HMGET', TASK, 'status', 'submit_op', 'submit_launch', 'first', 'digest')
if prior[1] then
  if prior[2] ~= OP then
    return { 'same', TID, prior[5] or '' }
  elseif prior[3] == '0' then
    return { 'waits', session()[1], prior[4] }
  end
  return { 'launch', prior[3], session()[1], prior[4] }
end
if ARGV[23] == '1' then
  local known = redis.call('GET', KEYS[10])
  if known then
    local at = string.find(known, ' ', 1, true)
    return { 'same', string.sub(known, 1, at - 1), string.sub(known, at + 1) }
  end
end
if lacks() then
  return { 'lacking' }
end

local meta = redis.call('HMGET', META, 'agent', 'user', 'active', 'hold', 'asked', 'turns', 'turns_since', 'files')
if not meta[1] then
  if ARGV[9] ~= '1' then
    return { 'missing' }
  end
  make(ARGV[7], ARGV[8])
  meta = { ARGV[7], ARGV[8], '' }
end
if meta[1] ~= ARGV[7] or (ARGV[8] ~= '' and meta[2] ~= '' and meta[2] ~= ARGV[8]) then
  return { 'foreign' }
end

if redis.call('ZCARD', LIVE) >= tonumber(ARGV[22]) and seldom().needed() and redis.call('ZCARD', LIVE) >= tonumber(ARGV[22]) then
  return { 'full' }
end

local launch, turn_of = '1', meta[3]
local busy = ARGV[10]
if busy ~= 'parallel' then
  local active = meta[3]
  local status = active ~= '' and redis.call('HGET', sibling(TASK, active), 'status')
  if status and not TERMINAL[status] then
    if busy == 'reject' then
      return { 'busy', active, status }
    elseif busy == 'interrupt' or (status == 'parked' and ARGV[11] == 'supersede') then
      return { 'interrupt', active }
    elseif redis.call('LLEN', WAITING) >= tonumber(ARGV[12]) then
      return { 'full' }
    end
    redis.call('RPUSH', WAITING, TID)
    launch = '0'
  else
    turn_of = TID
  end
end

local first = int(session(true)[2] + 1)
agree()
local epoch = session()[1]
local deadline = '0'
if ARGV[15] ~= '0' then
  deadline = int(NOW + tonumber(ARGV[15]))
end
redis.call('ZADD', LIVE, first, TID)
-- For the owner's count: requests of live turns, and turns whose hashes may be there still.
local turns = tonumber(meta[6] or '0')
if not meta[7] or NOW - tonumber(meta[7]) > TTL then
  redis.call('HSET', META, 'turns_before', int(turns), 'turns_since', int(NOW))
  turns = 0
end
redis.call('HSET', META, 'active', turn_of, 'remember', ARGV[18], 'asked', int((tonumber(meta[5]) or 0) + #ARGV[13]),
  'turns', int(turns + 1))
local _, _, number = write(24, '0')
redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'attempt', '0', 'ran', '0', 'number', number, 'epoch', epoch,
  'first', first, 'agent', ARGV[7], 'user', ARGV[8], 'request', ARGV[13], 'response', ARGV[14],
  'submitted', int(NOW), 'launched', int(NOW), 'deadline', deadline, 'crashes', '0', 'pending', '0',
  'trace', ARGV[17], 'metadata', ARGV[21], 'digest', ARGV[16], 'submit_op', OP, 'submit_launch', launch, 'fresh', int(NOW))
local life = lifetime(meta[4])
if ARGV[23] == '1' then
  redis.call('SET', KEYS[10], TID .. ' ' .. ARGV[16], 'PX', life)
  redis.call('HSET', TASK, 'idem', KEYS[10])
end
touch_session(life, meta[8])
redis.call('PEXPIRE', TASK, life)
-- Not before the task is there: a look that finds nothing is the last one.
remind(KEYS[11], ARGV[20], ARGV[19])
if launch == '0' then
  return { 'waits', epoch, first }
end
return { 'launch', launch, epoch, first }
