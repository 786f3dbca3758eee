#!lua flags=allow-oom
-- Take the tasks that are due.
-- Keys: due; known_servers: the time of the last look, and which servers the hints agree with.
-- most: how many at most; again_ms: until one is due again; all: the hint that stands for all live tasks; servers:
-- incarnations of the servers that hold hints and sessions ('': not known).
-- They stay noted, later: a rescuer that dies with them in its hands loses none.
-- → the hint that they have meanwhile, then the refs
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local known = redis.call('GET', known_servers) or ''
-- Hints may be missing where there is none for all live tasks (they were deleted), and where a server was not known
-- before: it may lack what its predecessor took last. A known one that is not the newest shows no loss (see
-- with_incarnation in _session.lua). Hints are too late where the clock went back: the broker failed over to a server
-- whose clock is behind. There may be very many, so they are not moved here: each live task is looked at.
local former, names = string.match(known, '^(%d+)(.*)$')
local when = (tonumber(former) or 0) - now > 1000 and 'LT' or 'NX'
names = names or ''
for index = servers_at, #ARGV do
  if ARGV[index] ~= '' and not string.find(names .. ' ', ' ' .. ARGV[index] .. ' ', 1, true) then
    names, when = ' ' .. ARGV[index] .. names, 'LT'
  end
end
-- Sixteen servers of twelve characters, and more than there are.
local characters = 13 * math.max(16, 3 * (#ARGV - servers_at + 1))
redis.call('SET', known_servers, string.format('%.0f', now) .. string.sub(names, 1, characters))
redis.call('ZADD', due, when, '0', all)
local refs = redis.call('ZRANGEBYSCORE', due, '-inf', string.format('%.0f', now), 'LIMIT', '0', most)
local again = string.format('%.0f', now + tonumber(again_ms))
for _, ref in ipairs(refs) do
  redis.call('ZADD', due, again, ref)
end
table.insert(refs, 1, again)
return refs
