#!lua flags=allow-oom
-- Take launches out of the queue.
-- Keys: queue; tags: the owners' tags; due; noted: who holds which launch; job_prefix: what the keys of the jobs' strings
-- begin with.
-- most: how many at most; look_ms: after which a rescuer looks whether they were begun; free: free slots of who claims;
-- times: how many times the free slots one owner may hold of them (0: any); holders: owner and how many slots it holds
-- there, for those that hold many; holder: the process that claims ('': it is not to be noted).
-- Slots cannot be taken back, so an owner is passed over that holds many and would leave few: the more are taken, the
-- fewer it may add, and some stay free for others. Those that are passed over keep their places.
-- A claimed launch is in no queue any more: what it costs to claim does not depend on what runs. It is noted
-- in the same breath: who claimed it may die, or never hear that it did.
-- → id and job, for each, in the order to run them; a job that has expired is empty
local function int(number)
  return string.format('%.0f', number)
end

most, free, times = tonumber(most), tonumber(free), tonumber(times)
local held = {}
for index = holders_at, #ARGV, 2 do
  held[ARGV[index]] = tonumber(ARGV[index + 1])
end
local popped, seen, last = {}, {}, 0

-- Choose of these launches, each with its turn; whether some were passed over.
local function choose(launches)
  local passed = false
  for index = 1, #launches, 2 do
    local id = launches[index]
    if #popped < most and not seen[id] then
      seen[id] = true
      local owner = string.match(id, '^([^/]*)/') or ''
      local holds = held[owner] or 0
      if times == 0 or holds < times * (free - #popped) then
        popped[#popped + 1] = id
        held[owner] = holds + 1
        last = math.max(last, tonumber(launches[index + 1]))
      else
        passed = true
      end
    end
  end
  return passed
end

local foremost = redis.call('ZRANGE', queue, '0', int(most - 1), 'WITHSCORES')
if #foremost == 0 then
  return foremost
end
local known = redis.call('HMGET', tags, '', '#')
local turn, waiting = known[1] or '0', known[2]
if choose(foremost) then
  -- Others stand behind those that were passed over: not far, or where newcomers are put.
  choose(redis.call('ZRANGE', queue, '0', '63', 'WITHSCORES'))
  choose(redis.call('ZRANGEBYSCORE', queue, '(' .. turn, '+inf', 'WITHSCORES', 'LIMIT', '0', '64'))
end
if #popped == 0 then
  return popped
end
redis.call('ZREM', queue, unpack(popped))
local clock = redis.call('TIME')
local look = string.format('%.0f', tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(look_ms))
local jobs, hints, holds = {}, {}, {}
for index = 1, #popped do
  local ref = string.match(popped[index], '^(.*):')
  -- Without a ref it was not put there by launch.lua: it is dropped, and must not take the others with it.
  if ref then
    jobs[#jobs + 1] = popped[index]
    jobs[#jobs + 1] = redis.call('GETDEL', job_prefix .. popped[index]) or ''
    hints[#hints + 1] = look
    hints[#hints + 1] = ref
    holds[#holds + 1] = '0'
    holds[#holds + 1] = holder .. ' ' .. popped[index]
  end
end
if #hints > 0 then
  redis.call('ZADD', due, unpack(hints))
  if holder ~= '' then
    -- Whatever becomes of this: it is a hint.
    redis.pcall('ZADD', noted, unpack(holds))
  end
end
if redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', tags)
else
  redis.call('HSET', tags, '', int(math.max(last, tonumber(turn) or 0)))
end
if waiting then
  -- Kept also when nothing waits: a queue that is deleted with its number is missed by that.
  redis.call('HSET', tags, '#', int((tonumber(waiting) or 0) - #popped))
end
return jobs
