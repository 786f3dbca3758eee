#!lua flags=allow-oom
-- Have live tasks looked at now, and list them. Keys: due; live: live tasks. refs: the tasks.
-- Their hints may be lost, or older than what became of them.
local clock = redis.call('TIME')
local now = string.format('%.0f', tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000))
local words = {}
for index = refs_at, #ARGV do
  words[#words + 1] = now
  words[#words + 1] = ARGV[index]
end
redis.call('ZADD', due, 'LT', unpack(words))
redis.call('ZADD', live, 'NX', unpack(words))
return 1
