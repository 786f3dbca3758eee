#!lua flags=allow-oom
-- Note that a worker process is subscribed to its own channel, or that it is not any more.
-- Keys: subscribed; held; watch (see watch.lua). process; connection: the broker's id of the one that carries its commands
-- ('': it is not subscribed); disturbed: '1' if it lost a connection: what cut that may have cut others', so for a while
-- a missing subscriber proves nothing; jobs: all that it holds.
-- → the jobs that it is noted to hold beyond these
if disturbed == '1' then
  local clock = redis.call('TIME')
  local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
  redis.call('HSET', watch, 'disturbed', string.format('%.0f', now))
end
redis.call('HDEL', watch, 'absent ' .. process)
if connection == '' then
  redis.call('HDEL', subscribed, process)
else
  redis.call('HSET', subscribed, process, connection)
end
local holds = {}
for index = jobs_at, #ARGV do
  holds[ARGV[index]] = true
  redis.call('ZADD', held, '0', process .. ' ' .. ARGV[index])
end
local more = {}
for _, entry in ipairs(redis.call('ZRANGEBYLEX', held, '[' .. process .. ' ', '(' .. process .. '!')) do
  local job = string.sub(entry, #process + 2)
  if not holds[job] then
    more[#more + 1] = job
  end
end
return more
