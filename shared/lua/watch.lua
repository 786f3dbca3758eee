#!lua flags=allow-oom
-- Find worker processes that were killed: their own channels have no subscriber any more.
-- Keys: subscribed: process → its connection; held: '<process> <job>', for each launch that it holds; watch: what the looks
-- have seen; workers: presence records.
-- channel: what processes' own channels begin with; server: this one's incarnation ('': not known); between_ms: between two
-- looks; absent_ms, looks: for how long, and in how many looks in a row, there was no subscriber; calm_ms: since when nothing was
-- disturbed: not this server, and no process's connection; most: jobs at most.
-- Looks that follow each other are those of any rescuers: what they see is kept here.
-- → idle (no process holds a launch) | early | refused why | looked, then of each that is gone: process, connection, jobs
between_ms, absent_ms, looks = tonumber(between_ms), tonumber(absent_ms), tonumber(looks)
calm_ms, most = tonumber(calm_ms), tonumber(most)
if redis.call('ZCARD', held) == 0 then
  return { 'idle' }
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local function int(number)
  return string.format('%.0f', number)
end
-- By a clock that was ahead, before the broker failed over.
local function past(ms)
  ms = tonumber(ms) or 0
  return ms <= now and ms or now
end
local looked = tonumber(redis.call('HGET', watch, 'looked') or '0') or 0
if looked <= now and now - looked < between_ms then
  return { 'early' }
end
local known, flat = {}, redis.call('HGETALL', watch)
for index = 1, #flat, 2 do
  known[flat[index]] = flat[index + 1]
end
if server ~= known['server'] then
  redis.call('HSET', watch, 'server', server)
  if known['server'] then
    -- Another server, or this one begun anew: all were disconnected.
    redis.call('HSET', watch, 'disturbed', int(now))
    known['disturbed'] = now
  end
end
local calm = now - past(known['disturbed']) >= calm_ms
-- Looks in a row: after a pause they begin anew.
local in_a_row = now - past(looked) < absent_ms + 4 * between_ms
redis.call('HSET', watch, 'looked', int(now))

-- Drop the entry of a process that is not on record any more: it has ended long ago. One entry in each look, by chance.
local entry = redis.call('ZRANDMEMBER', held, '1')[1]
local process = entry and string.match(entry, '^[^ ]*')
if process and redis.call('HEXISTS', subscribed, process) == 0 and redis.call('HEXISTS', workers, process) == 0 then
  redis.call('ZREM', held, entry)
end

local gone, absent = {}, {}
local names = redis.call('HKEYS', subscribed)
for first = 1, #names, 500 do
  local channels = {}
  for index = first, math.min(first + 499, #names) do
    channels[#channels + 1] = channel .. names[index]
  end
  local subscribers = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
  if subscribers.err then
    return { 'refused', subscribers.err }
  end
  for index = 1, #channels do
    local name = names[first + index - 1]
    local field = 'absent ' .. name
    if subscribers[2 * index] == 0 then
      local since, seen = string.match(in_a_row and known[field] or '', '^(%d+) (%d+)$')
      since, seen = past(since or now), (tonumber(seen) or 0) + 1
      absent[field] = true
      redis.call('HSET', watch, field, int(since) .. ' ' .. int(seen))
      if seen >= looks and now - since >= absent_ms then
        local jobs = redis.call('ZRANGEBYLEX', held, '[' .. name .. ' ', '(' .. name .. '!', 'LIMIT', '0', int(most))
        if #jobs == 0 then
          -- A live process is noted again when it subscribes.
          redis.call('HDEL', subscribed, name)
          absent[field] = nil
        elseif calm and most > 0 then
          most = most - #jobs
          local found = { name, redis.call('HGET', subscribed, name) }
          for _, each in ipairs(jobs) do
            found[#found + 1] = string.sub(each, #name + 2)
          end
          gone[#gone + 1] = found
        end
      end
    end
  end
end
for field in pairs(known) do
  if string.sub(field, 1, 7) == 'absent ' and not absent[field] then
    redis.call('HDEL', watch, field)
  end
end
table.insert(gone, 1, 'looked')
return gone
