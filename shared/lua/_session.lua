-- Put in front of every script that works on a session, but for the functions that it does not use: to make one costs
-- something in each run (see shared/broker/scripts.py). What they share:
-- the keys, the broker's clock, the time to live, and the one way to write into the log.
--
-- What all scripts on a session get is upper-case: the keys META, LOG, HISTORY, MEMORY, WAITING, TASK, CALLS, STATE and TAIL
-- (a channel); TID: the task's id; OP: the operation id; TTL and LEASE in ms; MAX_EVENTS and MAX_BYTES: what the log may
-- hold; INCARNATION: the server's, as the caller's connection learnt it when it was made ('': not known). From FILES_AT on
-- stand in ARGV the FILE_COUNT files that the texts refer to: digest, data ('': the session should have it), ….
-- CLUSTER: whether the server is a node of a cluster.
TTL, LEASE = tonumber(TTL), tonumber(LEASE)
MAX_EVENTS, MAX_BYTES = tonumber(MAX_EVENTS), tonumber(MAX_BYTES)
FILE_COUNT = tonumber(FILE_COUNT)
local FILES_END = FILES_AT + 2 * FILE_COUNT - 1

-- In a cluster a channel has a slot, as a key has.
local PUBLISH = CLUSTER and 'SPUBLISH' or 'PUBLISH'
if CLUSTER then
  -- Asked here and now: a session comes and goes between nodes that keep their names, so what a connection learnt a while ago
  -- is no proof of where it was meanwhile. As many characters as in shared/broker/pipeline.py.
  INCARNATION = string.sub(string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)'), 1, 12)
end

local clock = redis.call('TIME')
local NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
-- What an epoch is that begins now: in microseconds, so that two servers that begin the same session do not give it the same one.
local NEW_EPOCH = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
-- Where this server's clock is behind the epoch that is to end, the next one is so much greater, in microseconds, and as much again at
-- most by the server's incarnation: two servers that go on behind the same epoch do not give the next one the same name.
local STEP = 1048576

-- A tail message above this size carries only its last seq; the hub reads the rest from the log.
local TAIL_BYTES = 65536
-- What one entry costs beside what its fields hold, about.
local ENTRY_BYTES = 96

-- Waiting tasks whose keys are given their time to live again by others: beyond that, a rescuer's look does it.
local MOST_TOUCHED = 128

-- The session's live tasks, ordered by the seq of their first entry.
local LIVE = string.sub(META, 1, -5) .. 'live'

-- Large data by digest, each with the last seq of the batch that it came with last (`<digest>:seq`), and how many
-- elements of the memory refer to it (`<digest>:memory`). How texts refer to it: shared/session/files.py.
local FILES = string.sub(META, 1, -5) .. 'files'

local TERMINAL = { completed = true, failed = true, canceled = true }

-- Epochs remembered of a log: one for each time that its broker failed over or restarted, the newest and the first.
local MOST_FORMER = 64
-- Characters of the names of the servers that it was written on: five of them. With more, the broker would keep the whole
-- meta in its larger form (hash-max-listpack-value).
local MOST_NAMES = 64

-- Whole numbers as digits: Lua's own conversion turns large ones into 1.7e+12.
local function int(number)
  return string.format('%d', number)
end

-- When an epoch began, in ms.
local function began_at(epoch)
  return math.floor(tonumber(epoch) / 1000)
end

-- The epoch that begins now behind those up to `last`, as a text.
local function next_epoch(last)
  if NEW_EPOCH > last then
    return int(NEW_EPOCH)
  end
  return int(last + STEP + tonumber(string.match('0' .. INCARNATION, '^%x%x?%x?%x?%x?%x?'), 16))
end

-- Whether the session has files. `bytes`: the meta's field `files`.
local function has_files(bytes)
  return tonumber(bytes or '0') > 0
end

-- The digests of the files that a text refers to.
local function references(text)
  local found = {}
  if string.find(text, '\26', 1, true) then
    for digest in string.gmatch(text, '\26%l(%x+)\26') do
      found[#found + 1] = digest
    end
  end
  return found
end

-- The bytes of the files that a text refers to. What bounds texts counts them each time, as readers get them.
local function file_bytes(text)
  local bytes = 0
  for _, digest in ipairs(references(text)) do
    bytes = bytes + redis.call('HSTRLEN', FILES, digest)
  end
  return bytes
end

-- The key of another task of this session (kind: its task hash, calls or state).
local function sibling(kind, tid)
  return string.sub(kind, 1, -#TID - 1) .. tid
end

-- The time that the session's keys have to live. A parked task holds all of its session until its deadline: `hold`,
-- the meta's field.
local function lifetime(hold)
  return int(math.max(TTL, (tonumber(hold) or 0) - NOW + 60000))
end

-- Give the session's keys, but no task's, their time to live again. `files`: the meta's field.
local function touch_session(life, files)
  for _, key in ipairs({ META, LOG, HISTORY, MEMORY, WAITING }) do
    redis.call('PEXPIRE', key, life)
  end
  redis.call('PEXPIRE', LIVE, life)
  if has_files(files) then
    redis.call('PEXPIRE', FILES, life)
  end
end

-- Begin a session. What outlived another one of that name is dropped: its keys do not expire at the same moment. The files
-- that this script refers to stay: they were sent ahead. Nothing is dropped before the first write: a script that has
-- deleted something is not stopped any more when the broker's memory is full.
local function make(agent, user)
  redis.call('HSET', META, 'epoch', int(NEW_EPOCH), 'seq', '0', 'bytes', '0', 'incarnation', INCARNATION, 'head', '1', 'dropped', '0',
    'kept', '0', 'forgotten', '0', 'agent', agent, 'user', user, 'active', '', 'created', int(NOW), 'memory', '0')
  redis.call('DEL', LOG, HISTORY, MEMORY, WAITING, LIVE)
  local sent = {}
  for index = FILES_AT, FILES_END, 2 do
    sent[ARGV[index]] = true
  end
  for _, field in ipairs(redis.call('HKEYS', FILES)) do
    if not sent[field] then
      redis.call('HDEL', FILES, field)
    end
  end
end

-- What the session's meta says: epoch, seq and incarnation, and with `all`, for those who write: head, bytes, dropped, kept,
-- forgotten, the bytes of files that entries of log and history ever referred to, and the base: the log's first epoch, which all ids
-- of log and history begin with, whatever epochs came after it. Read once in a script, and kept as
-- `write` leaves them. `incarnation` holds those of the servers which the log was written on, with spaces between, the newest first; it, the
-- epoch and the base are texts.
local SESSION
local function session(all)
  if SESSION and (SESSION[4] or not all) then
    return SESSION
  elseif not all then
    SESSION = redis.call('HMGET', META, 'epoch', 'seq', 'incarnation')
  else
    SESSION = redis.call('HMGET', META, 'epoch', 'seq', 'incarnation', 'head', 'bytes', 'dropped', 'kept', 'forgotten', 'log_lent', 'base')
    SESSION[11] = SESSION[10] or SESSION[1]
    -- Both are there, or none is.
    SESSION[10] = SESSION[9] and redis.call('HGET', META, 'history_lent')
    for index = 4, 10 do
      SESSION[index] = tonumber(SESSION[index] or index ~= 6 and '0')
    end
  end
  SESSION[2] = tonumber(SESSION[2] or '0')
  return SESSION
end

-- The functions of paths that are rarely taken. Each function costs something in each run that makes it, so these are made
-- when one of them is called.
local function slow_paths()
  -- The seq of the first entry that a live task may still need; nil when none is live. A task that is gone without its
  -- end (expired, or of an earlier release) is taken off the list.
  local function first_needed()
    local first = redis.call('ZRANGE', LIVE, 0, 0, 'WITHSCORES')
    while first[1] do
      local status = first[1] == TID and 'running' or redis.call('HGET', sibling(TASK, first[1]), 'status')
      if status and not TERMINAL[status] then
        return tonumber(first[2])
      end
      redis.call('ZREM', LIVE, first[1])
      first = redis.call('ZRANGE', LIVE, 0, 0, 'WITHSCORES')
    end
  end

  -- An earlier release noted live tasks in the meta.
  local function import_live_tasks()
    local meta = redis.call('HGETALL', META)
    for index = 1, #meta, 2 do
      if string.sub(meta[index], 1, 5) == 'live:' then
        redis.call('ZADD', LIVE, meta[index + 1], string.sub(meta[index], 6))
        redis.call('HDEL', META, meta[index])
      end
    end
    redis.call('HSET', META, 'dropped', '0')
  end

  -- The bytes that a stream holds from `seq` on, of `sum` that were ever written into it: each entry says how many were
  -- before it, and how many of these were files'. nil where that is not known: an earlier release wrote the entry.
  -- → bytes from there on, files' bytes before it
  local function bytes_from(stream, base, seq, sum)
    local found = redis.call('XRANGE', stream, base .. '-' .. int(seq), '+', 'COUNT', 1)[1]
    if not found then
      return 0
    end
    local before, files_before = nil, 0
    for index = 1, #found[2], 2 do
      if found[2][index] == 's' then
        before = tonumber(found[2][index + 1])
      elseif found[2][index] == 'l' then
        files_before = tonumber(found[2][index + 1])
      end
    end
    if before then
      return sum - before, files_before
    end
  end

  -- Drop a stream's head: what is before seq `low`, and as much more as leaves no more bytes than allowed, but nothing
  -- from `high` on. However many entries that are, it looks at a few.
  -- → the seq from which entries are left, and their bytes (nil: not known), and the bytes of files that entries before
  -- them ever referred to (nil: all)
  local function drop(stream, base, low, high, sum)
    while low < high do
      local middle = math.floor((low + high) / 2)
      if (bytes_from(stream, base, middle, sum) or math.huge) <= MAX_BYTES then
        high = middle
      else
        low = middle + 1
      end
    end
    redis.call('XTRIM', stream, 'MINID', base .. '-' .. int(low))
    return low, bytes_from(stream, base, low, sum)
  end

  -- Note how many of the files' bytes that a stream's entries ever referred to, those that were trimmed did. It has `left`
  -- bytes now, and `trimmed` of files before them.
  local function count_trimmed_files(stream, left, trimmed)
    local all = redis.call('HGET', META, stream .. '_lent')
    if all then
      redis.call('HSET', META, stream .. '_back', left == 0 and all or int(trimmed or 0))
    end
  end

  -- Cut the log's head off before `target`, but never past what a live task needs.
  local function cut(target)
    local known = redis.call('HMGET', META, 'head', 'bytes', 'dropped', 'base', 'epoch')
    local bytes, dropped = tonumber(known[2]), tonumber(known[3] or '0')
    target = math.min(target, first_needed() or target)
    if target > tonumber(known[1]) then
      local _, left, trimmed = drop(LOG, known[4] or known[5], target, target, bytes + dropped)
      left = left or bytes
      count_trimmed_files('log', left, trimmed)
      redis.call('HSET', META, 'head', int(target), 'bytes', int(left), 'dropped', int(dropped + bytes - left))
    end
  end

  -- `trim`, where log (long) or history (old) are to be cut.
  local function cut_down(long, old)
    local _, seq, _, head, bytes, dropped, kept, forgotten, _, _, base = unpack(session(true), 1, 11)
    local first = first_needed() or seq + 1
    if long then
      local high = bytes > 4 * MAX_BYTES and seq + 1 or first
      if head < high then
        local left, trimmed
        head, left, trimmed = drop(LOG, base, math.min(high, math.max(head, seq - MAX_EVENTS + 1)), high, bytes + dropped)
        left = left or bytes
        count_trimmed_files('log', left, trimmed)
        redis.call('HSET', META, 'head', int(head), 'bytes', int(left), 'dropped', int(dropped + bytes - left))
        SESSION[4], SESSION[5], SESSION[6] = head, left, dropped + bytes - left
      end
    end
    if old then
      local high = kept > 4 * MAX_BYTES and seq or math.min(first, seq)
      local _, left, trimmed = drop(HISTORY, base, 1, high, kept + forgotten)
      left = left or kept
      count_trimmed_files('history', left, trimmed)
      redis.call('HSET', META, 'kept', int(left), 'forgotten', int(forgotten + kept - left))
      SESSION[7], SESSION[8] = left, forgotten + kept - left
    end
  end

  -- Keep the files that came with a batch, whose last entry has that seq. They count from the first batch on that came
  -- with them: what stage.lua has put there does not yet.
  local function store_files(seq)
    local bytes = 0
    for index = FILES_AT, FILES_END, 2 do
      if ARGV[index + 1] ~= '' then
        redis.call('HSETNX', FILES, ARGV[index], ARGV[index + 1])
      end
      if redis.call('HSET', FILES, ARGV[index] .. ':seq', int(seq)) == 1 then
        bytes = bytes + redis.call('HSTRLEN', FILES, ARGV[index])
      end
    end
    if bytes > 0 then
      redis.call('HINCRBY', META, 'files', int(bytes))
      redis.call('PEXPIRE', FILES, lifetime(redis.call('HGET', META, 'hold')))
    end
  end

  -- Give the keys of another task of this session their time to live again.
  local function touch_task(tid, life)
    redis.call('PEXPIRE', sibling(TASK, tid), life)
    redis.call('PEXPIRE', sibling(CALLS, tid), life)
    redis.call('PEXPIRE', sibling(STATE, tid), life)
    local idempotency = redis.call('HGET', sibling(TASK, tid), 'idem')
    if idempotency then
      redis.call('PEXPIRE', idempotency, life)
    end
  end

  -- Give the session's keys and this task's their time to live again, and those of tasks that wait for it (waiting).
  local function touch_all(waiting)
    local meta = redis.call('HMGET', META, 'hold', 'files')
    local life = lifetime(meta[1])
    touch_session(life, meta[2])
    redis.call('HSET', TASK, 'fresh', int(NOW))
    touch_task(TID, life)
    for _, field in ipairs(redis.call('HKEYS', CALLS)) do
      -- A call's string may have more time: it outlives a wait, however long.
      local call = string.sub(META, 1, -5) .. 'call:' .. field
      if string.sub(field, -7) ~= ':result' and redis.call('PTTL', call) < tonumber(life) then
        redis.call('PEXPIRE', call, life)
      end
    end
    for _, tid in ipairs(waiting and redis.call('LRANGE', WAITING, 0, MOST_TOUCHED - 1) or {}) do
      touch_task(tid, life)
    end
  end

  -- The epochs that the log went through since it was begun, each with its last seq, as cursors with spaces between.
  local function former()
    return redis.call('HGET', META, 'former') or ''
  end

  -- The last seq of an epoch that this log went through before; nil when it is none of those that are remembered.
  local function last_of(epoch)
    return tonumber(string.match(' ' .. former(), ' ' .. int(epoch) .. '%-(%d+)'))
  end

  -- Whether the log was not cleared since an epoch: they grow, and the first one is always remembered.
  local function has_epoch(epoch)
    local present = tonumber(redis.call('HGET', META, 'epoch'))
    local first = tonumber(string.match(former(), '(%d+)%-%d+$')) or present
    return first <= tonumber(epoch) and tonumber(epoch) <= present
  end

  -- The incarnations that the log was written on, with the one that the caller's connection learnt. A server never gets a
  -- former one again: one that is known, but not the newest, was learnt by a connection before the server took another, as
  -- a primary does while it serves (when its last replica has long been away). It shows no loss.
  -- A node of a cluster said its own name just now, and has a former one when the session was elsewhere meanwhile: that
  -- one may have lost something.
  local function with_incarnation(names)
    if CLUSTER then
      return INCARNATION
    elseif string.find(' ' .. names .. ' ', ' ' .. INCARNATION .. ' ', 1, true) or INCARNATION == '' then
      return names
    end
    return string.sub(names == '' and INCARNATION or INCARNATION .. ' ' .. names, 1, MOST_NAMES)
  end

  -- Begin a new epoch, greater than `seen`: what is left of the log keeps its places and ids, but what comes next gets no cursor that
  -- was given before. Cursors of the former epoch hold up to its last entry (`former`); followers get the same message as after a clear.
  local function begin_epoch(seen)
    local known = session()
    local names = with_incarnation(known[3] or '')
    local epoch = next_epoch(math.max(tonumber(known[1]), seen))
    redis.call('HSETNX', META, 'base', known[1])
    local cursors = { known[1] .. '-' .. int(known[2]) }
    for cursor in string.gmatch(former(), '%S+') do
      cursors[#cursors + 1] = cursor
    end
    if #cursors > MOST_FORMER then
      -- The oldest but the first.
      table.remove(cursors, MOST_FORMER)
    end
    redis.call('HSET', META, 'epoch', epoch, 'former', table.concat(cursors, ' '), 'incarnation', names)
    redis.call(PUBLISH, TAIL, epoch .. '-' .. int(known[2] + 1) .. '-' .. int(known[2]))
    known[1], known[3] = epoch, names
  end

  -- `detect_loss`, where epoch, seq and the newest incarnation do not show at once that nothing was lost. If something was,
  -- a new epoch begins.
  local function repair_loss(seen, seen_seq)
    local known = session()
    local before = known[3] or ''
    local epoch, seq = tonumber(known[1]), known[2]
    seen, seen_seq = tonumber(seen or '0'), tonumber(seen_seq or '0')
    local ahead = seen > epoch or (seen == epoch and seen_seq > seq)
    local names = with_incarnation(before)
    if ahead or (before ~= '' and names ~= before) then
      begin_epoch(seen)
    elseif names ~= before then
      redis.call('HSET', META, 'incarnation', names)
      known[3] = names
    end
    if ahead or seen == 0 or seen == epoch then
      return ahead
    end
    -- Of an epoch that is neither this one nor one before it, the log was cleared since: its tasks have ended.
    local last = last_of(seen)
    return last ~= nil and seen_seq > last
  end

  return {
    touch = touch_all, has_epoch = has_epoch, with_incarnation = with_incarnation, repair_loss = repair_loss,
    first_needed = first_needed, import_live_tasks = import_live_tasks, cut = cut, cut_down = cut_down,
    store_files = store_files,
  }
end

-- Give the session's keys and this task's their time to live again. It costs a call for each key, so it is done once
-- in a sixteenth of the TTL, or when a script may have made a key (force). Other tasks see to themselves: one that runs
-- by its renewals, a parked one has time until its deadline from the start. Only those that wait for this one are
-- touched with it, when that is due or it parks (waiting). `fresh`: the task's field.
local function touch(fresh, force, waiting)
  local due = fresh and NOW - tonumber(fresh) >= TTL / 16
  if fresh and not due and not force then
    return
  end
  slow_paths().touch(due or waiting)
end

-- Make sure, before anything is written, that no place in the log is given twice. It may have lost its end: this server
-- was a replica that lagged, or came back with an older file. Two things show it: an incarnation that the log was not
-- written on before, and a writer that has seen more than there is (up to `seen_seq` of epoch `seen`, if any). A loss begins
-- a new epoch.
-- → whether that writer has seen what is not in the log
local function detect_loss(seen, seen_seq)
  local known = session()
  if not known[1] then
    return false
  end
  local before = known[3] or ''
  local newest = before == INCARNATION or string.find(before, INCARNATION .. ' ', 1, true) == 1
  if newest and (not seen or seen == known[1] and tonumber(seen_seq) <= known[2]) then
    return false
  end
  return slow_paths().repair_loss(seen, seen_seq)
end

-- Cut log and history down to their limits once they are a tenth above them. What a live task may still need stays,
-- unless it has come to four times the limit.
local function trim()
  local _, seq, _, head, bytes, _, kept = unpack(session(true), 1, 7)
  local long, old = bytes > 1.1 * MAX_BYTES or seq - head + 1 > 1.1 * MAX_EVENTS, kept > 1.1 * MAX_BYTES
  if long or old then
    slow_paths().cut_down(long, old)
  end
end

-- Close a message; the seq of its first entry, by which a response's output is ordered.
local function close(message)
  local opened = redis.call('HGET', TASK, 'open:' .. message)
  redis.call('HDEL', TASK, 'open:' .. message)
  return opened
end

-- The field by which an entry says that those before it refer to so many bytes of files; none where they refer to none.
local function files_before(bytes)
  if bytes > 0 then
    return 'l', int(bytes)
  end
end

-- More fields of an entry: the epoch that it is written in, where that is not the one its id begins with.
local function written_in(epoch, base, ...)
  if epoch == base then
    return ...
  end
  return 'n', epoch, ...
end

-- Whether a file that came without its data is not here. To be asked before anything is written: the caller repeats the
-- script with the data.
local function files_missing()
  for index = FILES_AT, FILES_END, 2 do
    if ARGV[index + 1] == '' and redis.call('HEXISTS', FILES, ARGV[index]) == 0 then
      return true
    end
  end
  return false
end

-- The files that live tasks refer to: in requests, answers and checkpoints.
local function files_in_use()
  local digests = {}
  for _, tid in ipairs(redis.call('ZRANGE', LIVE, 0, -1)) do
    local request = redis.call('HGET', sibling(TASK, tid), 'request')
    local calls, state = redis.call('HGETALL', sibling(CALLS, tid)), redis.call('HGETALL', sibling(STATE, tid))
    for _, texts in ipairs({ { request or '' }, calls, state }) do
      for _, text in ipairs(texts) do
        for _, digest in ipairs(references(text)) do
          digests[digest] = true
        end
      end
    end
  end
  return digests
end

-- Drop the files that nothing refers to any more: what came with them is gone from log and history, no live task has
-- them, and the memory has forgotten them. What came after a live task began may be its own: that is looked up only
-- where log and history were cut behind that place.
local function drop_unused_files()
  local oldest = redis.call('XRANGE', HISTORY, '-', '+', 'COUNT', 1)[1]
  local low = math.min(session(true)[4], oldest and tonumber(string.match(oldest[1], '%d+$')) or math.huge)
  local live, in_use = slow_paths().first_needed() or math.huge, nil
  local bytes = 0
  for _, digest in ipairs(redis.call('HKEYS', FILES)) do
    if #digest == 64 then
      local known = redis.call('HMGET', FILES, digest .. ':seq', digest .. ':memory')
      local seq = tonumber(known[1] or '0')
      local gone = seq < low and tonumber(known[2] or '0') <= 0
      if gone and seq >= live then
        in_use = in_use or files_in_use()
        gone = not in_use[digest]
      end
      if gone then
        redis.call('HDEL', FILES, digest, digest .. ':seq', digest .. ':memory')
      else
        bytes = bytes + redis.call('HSTRLEN', FILES, digest)
      end
    end
  end
  redis.call('HSET', META, 'files', int(bytes))
end

-- Write a batch of entries, described in ARGV from `at` on: their count, then for each
--   d  path kind body extra                           within a message
--   o  path kind body extra  message                  opens a message
--   c  path kind body extra  message                  completes it: into the history too
--   s  path kind body extra  message  group  last     completes a tool's result: `last` replaces
--                                                     `extra` when it is its group's last one
--   h  path kind body extra                           whole in itself: into the history too
-- Here, and only here, an event gets its place in the log and its sequence_number. (What a reader gets in place of
-- trimmed events is numbered for that reader alone: api/streaming/sse.py.) A body that
-- begins with '{' is whole and not numbered (the user's own message).
-- `number` is the task's next sequence_number, as its hash has it; the caller keeps the one that comes back. It has
-- called `detect_loss`, too.
-- Returns the index behind the batch, the seq of its last entry, and the next sequence_number.
local function write(at, number)
  local count = tonumber(ARGV[at])
  at = at + 1
  local meta = session(true)
  local epoch, seq, bytes, kept = meta[1], meta[2], meta[5], meta[7]
  -- What refers to a file came with it.
  local files = FILE_COUNT > 0
  if files then
    slow_paths().store_files(seq + count)
  end
  if count == 0 then
    return at, seq, number
  end
  number = tonumber(number)
  local dropped, forgotten = meta[6], meta[8]
  if not dropped then
    slow_paths().import_live_tasks()
    dropped = 0
  end
  local first = seq + 1
  local base = meta[11]
  local now, created = int(NOW), int(NOW - began_at(base))
  local lines, size = {}, 0
  local log_files, history_files = meta[9], meta[10]
  for index = 1, count do
    local op, path, kind, body, extra = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    at = at + 5
    seq = seq + 1
    local place = int(seq)
    local id = base .. '-' .. place
    local opened = place
    if string.byte(body) ~= 123 then
      body = '{"sequence_number":' .. int(number) .. ',' .. body
      number = number + 1
    end
    if op == 'o' then
      redis.call('HSET', TASK, 'open:' .. ARGV[at], place)
      at = at + 1
    elseif op == 'c' then
      opened = close(ARGV[at]) or opened
      at = at + 1
    elseif op == 's' then
      opened = close(ARGV[at]) or opened
      if redis.call('HINCRBY', TASK, 'group:' .. ARGV[at + 1], -1) == 0 then
        extra = ARGV[at + 2]
      end
      at = at + 3
    end
    local line = TID .. '\t' .. path .. '\t' .. kind .. '\t' .. now .. '\t' .. body .. '\t' .. extra
    local of_files = files and file_bytes(line) or 0
    local costs = #line + ENTRY_BYTES + of_files
    if of_files > 0 then
      -- Followers read it, with what it refers to.
      size = size + TAIL_BYTES
    end
    redis.call('XADD', LOG, id, 't', TID, 'a', path, 'y', kind, 'c', created, 'e', body, 'x', extra, 's',
      int(dropped + bytes), written_in(epoch, base, files_before(log_files)))
    log_files = log_files + of_files
    bytes = bytes + costs
    if op == 'c' or op == 's' or op == 'h' then
      redis.call('XADD', HISTORY, id, 't', TID, 'a', path, 'y', kind, 'c', created, 'e', body, 'x', extra, 'o', opened,
        's', int(forgotten + kept), written_in(epoch, base, files_before(history_files)))
      history_files = history_files + of_files
      kept = kept + costs
    end
    lines[index] = line
    size = size + #line
  end
  if kept > meta[7] then
    redis.call('HSET', META, 'seq', int(seq), 'bytes', int(bytes), 'kept', int(kept))
  else
    redis.call('HSET', META, 'seq', int(seq), 'bytes', int(bytes))
  end
  if log_files > meta[9] then
    redis.call('HSET', META, 'log_lent', int(log_files), 'history_lent', int(history_files))
  end
  local message = epoch .. '-' .. int(first) .. '-' .. int(seq) .. '-' .. now
  if size <= TAIL_BYTES then
    message = message .. '\n' .. table.concat(lines, '\n')
  end
  redis.call(PUBLISH, TAIL, message)
  if kept > 0 and meta[7] == 0 then
    redis.call('PEXPIRE', HISTORY, int(TTL))
  end
  meta[2], meta[5], meta[6], meta[7], meta[9], meta[10] = seq, bytes, dropped, kept, log_files, history_files
  trim()
  return at, seq, int(number)
end

-- How many of the newest turns in memory, `most` at most, have no more than so many bytes together, and these bytes.
-- It reads what it counts: `memory` in the meta has the sum where this release wrote the list.
local function newest(most, limit)
  local count, bytes = 0, 0
  while count < most do
    local element = redis.call('LINDEX', MEMORY, -count - 1)
    local costs = element and #element + file_bytes(element)
    if not element or bytes + costs > limit then
      break
    end
    count, bytes = count + 1, bytes + costs
  end
  return count, bytes
end

-- Whether a rescuer has put off its next look at this task (`looked`, sweep.lua) since the look that the caller knows of. Where
-- the hints are on another server, one that was left there before this script may have been used up before it came, however
-- late that is: nothing may then be done that needs a look soon. `known_look`: '-' where the hint is left here.
-- → the script's reply, or nil
local function hint_used(looked, known_look)
  looked = looked or ''
  return known_look ~= '-' and known_look ~= looked and { 'looked', looked } or nil
end

-- Have a rescuer look at this task in `look_ms`, where the hints are on this server (`due` is nil where they are not);
-- as remind.lua does.
local function remind(due, ref, look_ms)
  if not due then
    return
  end
  local at = NOW + tonumber(look_ms)
  local known = redis.call('ZSCORE', due, ref)
  if known and tonumber(known) <= at then
    at = tonumber(known) - 1
  end
  redis.call('ZADD', due, int(at), ref)
end

-- Why a writer may not write, as the script's reply, or nil. `task`: its status, attempt, op and holder.
-- The writer shows its attempt, its holder, the epoch and seq that it has seen, and its last operation that was acknowledged; the
-- last four are '', 0, 0 and '' for one that has seen nothing. The holder is the operation that took the attempt: a broker that went back
-- may give a number twice, to two processes.
-- `op` is the last operation kept for the task: the operation ids of a process grow, and an attempt is held by
-- the one that took it. So a write that the network delayed past a later one is fenced, too; whoever sent it has long
-- had its outcome from a repeat.
-- A holder whose own writes were lost cannot go on from what it knows: the task is queued again, for an attempt that
-- begins with what is left. That is no crash. Entries that were lost show by their seq; a batch that only keeps something has
-- none, and shows by its operation: an older one is kept than the writer knows to be.
-- → gone | ended | fenced | behind launch | files_missing
local function refusal(task, mine, holds, seen_epoch, seen_seq, seen_op)
  local behind = detect_loss(seen_epoch, seen_seq)
  local status, attempt, op, holder = unpack(task, 1, 4)
  if not status or not session()[1] then
    -- A session that was deleted takes what is left of its tasks along.
    return { 'gone' }
  elseif TERMINAL[status] then
    return { 'ended' }
  elseif status ~= 'running' or attempt ~= mine or (holds ~= '' and holder and holds ~= holder)
    or (op and OP ~= '' and tonumber(OP) < tonumber(op)) then
    return { 'fenced' }
  elseif not behind and (seen_op == '' or tonumber(op or '0') >= tonumber(seen_op)) then
    return files_missing() and { 'files_missing' } or nil
  end
  local more = redis.call('HMGET', TASK, 'launch', 'ending')
  if more[2] then
    -- Whoever ends it tries again; should it not, a rescuer does.
    return { 'fenced' }
  end
  local launch = int(tonumber(more[1]) + 1)
  redis.call('HDEL', TASK, 'lease', 'op')
  redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW))
  return { 'behind', launch }
end

-- What an attempt's holder needs to go on with a task, and the digests of the files that this and its `memory` refer to: none
-- where the session has none (`files`, the meta's field). `calls` and `state`: where they were read already.
local function snapshot(bytes, calls, state, memory)
  local known, task = session(), redis.call('HGETALL', TASK)
  calls, state = calls or redis.call('HGETALL', CALLS), state or redis.call('HGETALL', STATE)
  local files, given = {}, {}
  for _, texts in ipairs(has_files(bytes) and { task, calls, state, memory or {} } or {}) do
    for _, text in ipairs(texts) do
      for _, digest in ipairs(references(text)) do
        if not given[digest] then
          given[digest] = true
          files[#files + 1] = digest
        end
      end
    end
  end
  return { known[1], task, calls, state, int(known[2]), files }
end

-- Open groups of calls, described in ARGV from `at` on: their count, then id and size of each. They come
-- before the entries that settle them. Returns the index behind them.
local function open_groups(at)
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    redis.call('HSET', TASK, 'group:' .. ARGV[at], ARGV[at + 1])
    at = at + 2
  end
  return at
end

-- Keep checkpoints and register calls, described in ARGV from `at` on, each list with its count:
-- calls (id, record), fields to set (field, value), fields to drop, calls to take back. A call's string is `call_prefix` and
-- its id.
local function checkpoint(at, call_prefix)
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    redis.call('HSET', CALLS, ARGV[at], ARGV[at + 1])
    redis.call('SET', call_prefix .. ARGV[at], TID .. ' pending', 'PX', int(TTL))
    redis.call('HINCRBY', TASK, 'pending', 1)
    at = at + 2
  end
  if count > 0 then
    redis.call('PEXPIRE', CALLS, int(TTL))
  end
  count = tonumber(ARGV[at])
  at = at + 1
  local progress = false
  for _ = 1, count do
    redis.call('HSET', STATE, ARGV[at], ARGV[at + 1])
    if ARGV[at] == 'agent_version' then
      -- For operators, who see it after the end, too.
      redis.call('HSET', TASK, 'agent_version', ARGV[at + 1])
    end
    -- That the model was asked is no progress yet, nor that it failed.
    progress = progress or (ARGV[at] ~= 'background' and ARGV[at] ~= 'model_calls')
    at = at + 2
  end
  if count > 0 then
    redis.call('PEXPIRE', STATE, int(TTL))
  end
  if progress then
    -- What is retried from here on is counted anew (release.lua).
    redis.call('HDEL', TASK, 'retries', 'retrying_since', 'retrying')
  end
  count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    redis.call('HDEL', STATE, ARGV[at])
    at = at + 1
  end
  count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    local answered = redis.call('HEXISTS', CALLS, ARGV[at] .. ':result') == 1
    if redis.call('HDEL', CALLS, ARGV[at]) == 1 and not answered then
      redis.call('HINCRBY', TASK, 'pending', -1)
      redis.call('SET', call_prefix .. ARGV[at], TID .. ' withdrawn', 'XX', 'KEEPTTL')
    end
    at = at + 1
  end
  return at
end
