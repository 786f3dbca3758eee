-- Write a batch for an attempt and keep what it checkpoints. KEYS 10 prefix of the calls' strings
-- ARGV 7 attempt  8… groups, entries, calls, state
-- → ok seq | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'out', 'number')
if task[3] == OP and task[2] == ARGV[7] then
  return { 'ok', task[4] }
end
local no = refusal(task[1], task[2], ARGV[7], task[3])
if no then
  return { no }
end
local at, seq, number = write(group(8), task[5])
keep(at)
redis.call('HSET', TASK, 'lease', int(NOW + LEASE), 'op', OP, 'out', int(seq), 'number', number)
touch(false)
return { 'ok', int(seq) }
