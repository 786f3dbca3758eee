#!lua flags=allow-oom
-- Ask whether a request to a model may begin. Keys: models: their states (shared/model_states.py); permits: requests that
-- are being made → until when they count; waiting: turns that wait for a permit → until when they are expected.
-- model; call: names the request; turn: its ref; limit: requests at once (0: any number); permit_ms: how long a permit
-- counts unless it is extended; probe_ms: how long the breaker waits for its probe; waiting_ms: how long a turn is expected.
-- → go | held ms since when | open ms (until the next probe; 0: one is being made) | busy turns that wait
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local function at(ms)
  return string.format('%.0f', now + tonumber(ms))
end
local state = redis.call('HMGET', models, 'held ' .. model, 'until ' .. model, 'probe ' .. model)
if state[1] then
  return { 'held', string.format('%.0f', math.max(0, now - (tonumber(state[1]) or now))) }
end
local probe = false
if state[2] then
  local closed_until = tonumber(state[2]) or 0
  if closed_until > now then
    return { 'open', string.format('%.0f', closed_until - now) }
  end
  local probe_until, prober = string.match(state[3] or '', '^(%d+) (.*)$')
  if prober ~= call and probe_until and tonumber(probe_until) > now then
    return { 'open', '0' }
  end
  probe = true
end
if tonumber(limit) > 0 then
  redis.call('ZREMRANGEBYSCORE', permits, '-inf', at(0))
  if redis.call('ZCARD', permits) >= tonumber(limit) and not redis.call('ZSCORE', permits, call) then
    redis.call('ZREMRANGEBYSCORE', waiting, '-inf', at(0))
    redis.call('ZADD', waiting, at(waiting_ms), turn)
    redis.call('PEXPIRE', waiting, waiting_ms)
    return { 'busy', redis.call('ZCARD', waiting) }
  end
  redis.call('ZADD', permits, at(permit_ms), call)
  redis.call('PEXPIRE', permits, permit_ms)
  redis.call('ZREM', waiting, turn)
end
if probe then
  redis.call('HSET', models, 'probe ' .. model, at(probe_ms) .. ' ' .. call)
end
return { 'go' }
