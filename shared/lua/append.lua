-- Write a batch for an attempt and keep what it checkpoints. call_prefix: of the calls' strings.
-- attempt, holder, seen_epoch, seen_seq, seen_op: what the writer shows (see refusal); batch: groups, entries,
-- calls, state.
-- → ok seq epoch | behind launch | fenced | ended | gone | files_missing
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'out', 'number', 'fresh')
if task[3] == OP and task[2] == attempt then
  return { 'ok', task[5], session()[1] }
end
session(true)
local no = refusal(task, attempt, holder, seen_epoch, seen_seq, seen_op)
if no then
  return no
end
local at, seq, number = write(open_groups(batch_at), task[6])
checkpoint(at, call_prefix)
redis.call('HSET', TASK, 'lease', int(NOW + LEASE), 'op', OP, 'out', int(seq), 'number', number)
touch(task[7])
return { 'ok', int(seq), session()[1] }
