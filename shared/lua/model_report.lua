#!lua flags=allow-oom
-- Record how a request to a model went. Keys: models, permits: as model_enter.lua.
-- model; call: names the request; outcome: answered, failed, or none (it was broken off); over: 1: its permit is given
-- back; most_failures: in a row, that open the breaker; first_ms, most_ms: how long it stays open the first time, doubled
-- by each probe that fails, and at most; asked_ms: how long the provider wants to be left alone; doorbell: the channel on which
-- workers hear that something is noted of a model of which nothing was, or that the breaker opened; message: how.
-- → opened ms | closed | same
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local function field(name)
  return name .. ' ' .. model
end
if over == '1' then
  redis.call('ZREM', permits, call)
end
local state = redis.call('HMGET', models, field('failures'), field('opened'), field('probe'))
local opened = tonumber(state[2]) or 0
local probes = string.match(state[3] or '', '^%d+ (.*)$') == call
if outcome == 'answered' then
  if state[1] or opened > 0 then
    redis.call('HDEL', models, field('failures'), field('opened'), field('since'), field('until'), field('probe'))
  end
  return { opened > 0 and 'closed' or 'same' }
elseif outcome == 'none' then
  if probes then
    redis.call('HDEL', models, field('probe'))
  end
  return { 'same' }
elseif opened > 0 and not probes then
  -- It began before the breaker opened.
  return { 'same' }
end
local failures = redis.call('HINCRBY', models, field('failures'), 1)
local opens = failures >= tonumber(most_failures)
if failures == 1 or opens and opened == 0 then
  redis.call('PUBLISH', doorbell, message)
end
if not opens then
  return { 'same' }
end
local ms = math.min(tonumber(first_ms) * 2 ^ math.min(opened, 30), tonumber(most_ms))
ms = math.max(ms, math.min(tonumber(asked_ms), tonumber(most_ms)))
redis.call('HSETNX', models, field('since'), string.format('%.0f', now))
redis.call('HSET', models, field('opened'), string.format('%.0f', opened + 1), field('until'), string.format('%.0f', now + ms))
redis.call('HDEL', models, field('probe'))
return { 'opened', string.format('%.0f', ms) }
