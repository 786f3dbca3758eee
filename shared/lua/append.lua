-- Write a batch for an attempt and keep what it checkpoints. KEYS 10 prefix of the calls' strings
-- ARGV 7 to 10 what the writer shows  11… groups, entries, calls, state
-- → ok seq epoch | behind launch | fenced | ended | gone | lacking
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'out', 'number', 'fresh')
if task[3] == OP and task[2] == ARGV[7] then
  return { 'ok', task[5], session()[1] }
end
session(true)
local no = refusal(task)
if no then
  return no
end
local at, seq, number = write(group(11), task[6])
keep(at)
redis.call('HSET', TASK, 'lease', int(NOW + LEASE), 'op', OP, 'out', int(seq), 'number', number)
touch(task[7])
return { 'ok', int(seq), session()[1] }
