-- Take a piece of what a fork begins with, for the script that makes it (fork.lua). Keys: history, memory: where it waits.
-- life_ms: how long; parts: how many elements of the memory, these, then of each entry of the history its id, how many fields and
-- values it has, and these.
-- → what an epoch is that begins now, see _session.lua
local at = parts_at + 1
for _ = 1, tonumber(ARGV[parts_at]) do
  redis.call('RPUSH', memory, ARGV[at])
  at = at + 1
end
while at < #ARGV do
  local count = tonumber(ARGV[at + 1])
  redis.call('XADD', history, ARGV[at], unpack(ARGV, at + 2, at + 1 + count))
  at = at + 2 + count
end
redis.call('PEXPIRE', history, life_ms)
redis.call('PEXPIRE', memory, life_ms)
local clock = redis.call('TIME')
return string.format('%.0f', tonumber(clock[1]) * 1000000 + tonumber(clock[2]))
