-- Wait for the client without a worker. call_prefix: of the calls' strings.
-- attempt, holder, seen_epoch, seen_seq, seen_op: what the writer shows (see refusal); wait_ms: the client has to
-- answer; policy: the agent's `parked`; batch: groups, entries, calls, state.
-- → parked | launch n (all answers are already in) | superseded | behind launch | fenced | ended | gone | files_missing

-- A task's newest parks, whose places it keeps: with them go the responses that begin or end there.
local MOST_PARKS = 128

local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'launch', 'ending', 'out', 'number', 'fresh', 'parks')
if task[3] == OP and task[2] == attempt then
  if task[7] == '' then
    return { 'parked' }
  elseif task[7] == 'superseded' then
    return { 'superseded' }
  end
  return { 'launch', task[7] }
end
session(true)
local no = refusal(task, attempt, holder, seen_epoch, seen_seq, seen_op)
if no then
  return no
end
local at, _, number = write(open_groups(batch_at), task[8])
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
-- The calls' strings outlive the wait, however long: a late answer is told that it is late.
local life, open = int(tonumber(wait_ms) + TTL), {}
for _, call in ipairs(redis.call('HKEYS', CALLS)) do
  if string.sub(call, -7) ~= ':result' then
    local answered = redis.call('HEXISTS', CALLS, call .. ':result') == 1
    redis.call('SET', call_prefix .. call, TID .. (answered and ' answered' or ' pending'), 'PX', life)
    if not answered then
      open[#open + 1] = call
    end
  end
end
-- The entry by which readers see it, spelled here: nobody else knows which calls are open by now. Ids of calls are ours, and
-- need no escapes. Behind the batch, as if it had come with it.
table.sort(open)
local parks = task[10] or ''
local first, park = tonumber(string.match(parks, '^%d+%-(%d+)') or '1'), tonumber(string.match(parks, '%d+$') or '0') + 1
if park - first >= MOST_PARKS then
  parks = string.gsub(parks, '^%S+ ', '', 1)
end
local usage = redis.call('HGET', STATE, 'usage')
ARGV[#ARGV + 1] = '1'
local marker_at = #ARGV
for _, each in ipairs({ 'h', '', 'parked', '{"object":"turnstream.parked","park":' .. int(park) .. ',"calls":["'
  .. table.concat(open, '","') .. '"],"until":' .. int(until_ms) .. (usage and ',"usage":' .. usage or '') .. '}', '' }) do
  ARGV[#ARGV + 1] = each
end
local _, place = write(marker_at, number)
redis.call('HSET', TASK, 'status', 'parked', 'parked', int(NOW), 'parked_until', int(until_ms), 'op', OP, 'out', '', 'number', number,
  'parks', (parks == '' and '' or parks .. ' ') .. int(place) .. '-' .. int(park))
local hold = redis.call('HGET', META, 'hold')
if not hold or tonumber(hold) < until_ms then
  redis.call('HSET', META, 'hold', int(until_ms))
end
touch(task[9], true, true)
return { 'parked' }
