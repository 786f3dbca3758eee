-- Wait for the client without a worker. call_prefix: of the calls' strings.
-- attempt, holder, seen_epoch, seen_seq: what the writer shows (see refusal); wait_ms: the client has to
-- answer; policy: the agent's `parked`; batch: groups, entries, calls, state.
-- → parked | launch n (all answers are already in) | superseded | behind launch | fenced | ended | gone | files_missing
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'launch', 'ending', 'out', 'number', 'fresh')
if task[3] == OP and task[2] == attempt then
  if task[7] == '' then
    return { 'parked' }
  elseif task[7] == 'superseded' then
    return { 'superseded' }
  end
  return { 'launch', task[7] }
end
session(true)
local no = refusal(task, attempt, holder, seen_epoch, seen_seq)
if no then
  return no
end
local at, seq, number = write(open_groups(batch_at), task[8])
checkpoint(at, call_prefix)
local pending = tonumber(redis.call('HGET', TASK, 'pending'))
if pending > 0 and policy == 'supersede' and redis.call('LLEN', WAITING) > 0 then
  -- Another turn waits already: this one gives way at once, and its holder writes the end.
  redis.call('HSET', TASK, 'lease', int(NOW + LEASE), 'op', OP, 'out', 'superseded', 'number', number)
  touch(task[9], true)
  return { 'superseded' }
end
redis.call('HDEL', TASK, 'lease')
if pending == 0 then
  local launch = int(tonumber(task[5]) + 1)
  redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW), 'op', OP, 'out', launch, 'number', number)
  touch(task[9], true)
  return { 'launch', launch }
end
local until_ms = NOW + tonumber(wait_ms)
redis.call('HSET', TASK, 'status', 'parked', 'parked_until', int(until_ms), 'op', OP, 'out', '', 'number', number)
-- The calls' strings outlive the wait, however long: a late answer is told that it is late.
local life = int(tonumber(wait_ms) + TTL)
for _, call in ipairs(redis.call('HKEYS', CALLS)) do
  if string.sub(call, -7) ~= ':result' then
    local answered = redis.call('HEXISTS', CALLS, call .. ':result') == 1
    redis.call('SET', call_prefix .. call, TID .. (answered and ' answered' or ' pending'), 'PX', life)
  end
end
local hold = redis.call('HGET', META, 'hold')
if not hold or tonumber(hold) < until_ms then
  redis.call('HSET', META, 'hold', int(until_ms))
end
touch(task[9], true, true)
-- Who waits for what this turn comes to is told, though nothing was said: of the entries from seq + 1 to seq.
redis.call(PUBLISH, TAIL, session()[1] .. '-' .. int(seq + 1) .. '-' .. int(seq))
return { 'parked' }
