#!lua flags=allow-oom
-- Have live tasks looked at now, and list them. KEYS 1 due  2 live tasks   ARGV refs
-- Their hints may be lost, or older than what became of them.
local clock = redis.call('TIME')
local now = string.format('%.0f', tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000))
local words = {}
for index = 1, #ARGV do
  words[2 * index - 1], words[2 * index] = now, ARGV[index]
end
redis.call('ZADD', KEYS[1], 'LT', unpack(words))
redis.call('ZADD', KEYS[2], 'NX', unpack(words))
return 1
