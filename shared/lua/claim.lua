#!lua flags=allow-oom
-- Take launches out of the queue. KEYS 1 queue  2 owners' tags  3 due  4 prefix of the jobs' strings
-- ARGV 1 how many at most
--      2 ms after which a rescuer looks whether they were begun
-- A claimed launch is in no queue any more: what it costs to claim does not depend on what runs. It is noted
-- in the same breath: who claimed it may die, or never hear that it did.
-- → id and job, for each, in the order to run them; a job that has expired is empty
local popped = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
if #popped == 0 then
  return popped
end
local clock = redis.call('TIME')
local look = string.format('%.0f', tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(ARGV[2]))
local jobs, hints = {}, {}
for index = 1, #popped, 2 do
  local ref = string.match(popped[index], '^(.*):')
  -- Without a ref it was not put there by launch.lua: it is dropped, and must not take the others with it.
  if ref then
    jobs[#jobs + 1] = popped[index]
    jobs[#jobs + 1] = redis.call('GETDEL', KEYS[4] .. popped[index]) or ''
    hints[#hints + 1] = look
    hints[#hints + 1] = ref
  end
end
if #hints > 0 then
  redis.call('ZADD', KEYS[3], unpack(hints))
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
else
  redis.call('HSET', KEYS[2], '', popped[#popped])
  redis.call('HINCRBY', KEYS[2], '#', -#popped / 2)
end
return jobs
