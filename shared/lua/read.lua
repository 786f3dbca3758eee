#!lua flags=no-writes
-- Read a session's log or history from a place on, no more at once than is good for the broker and the reader.
-- Keys: meta; stream: log or history; files.
-- place: a cursor, of another epoch than the log's: nothing stands behind it; 0-0: the first; stop: the last cursor that is wanted, as XRANGE
-- takes it; most_bytes: of the entries, with their files.
-- → meta written entries files whole cut | nothing, when there is no such session
--   meta: agent, user, epoch, seq, head, active, former, as META of event_log.py has them, then bytes,
--   forgotten and base: see _session.lua;
--   written: when the entry at the place was written, '' if none stands there; entries: those behind the place;
--   files: digests of what the entries refer to, whose bytes count as often as they do;
--   whole: 1 if that is all that stands behind the place, 0 if it was too much
--   cut: 1 if entries of a history that stood behind the place may have been cut, 0 if none was
local known = redis.call('HMGET', meta, 'agent', 'user', 'epoch', 'seq', 'head', 'active', 'former', 'bytes', 'forgotten', 'base')
local epoch, seq, head, size_of_log, base = known[3], known[4], known[5], known[8], known[10]
if not epoch then
  return {}
end
local of = string.match(place, '^%d+')
if of ~= epoch and of ~= '0' then
  return { known, '', {}, {}, 1, 0 }
elseif base then
  -- All ids begin with the log's first epoch.
  local at = '^(%(?)' .. epoch .. '%-'
  place, stop = string.gsub(place, at, '%1' .. base .. '-'), (string.gsub(stop, at, '%1' .. base .. '-'))
end
most_bytes = tonumber(most_bytes)
-- What an entry costs a reader beside its texts, about.
local ENTRY_BYTES = 512
-- How many are read first: the place's own entry, and of a log what should fit if its entries are alike.
local count, cut = 5, 0
if string.sub(stream, -4) == ':log' then
  local each = tonumber(size_of_log or '0') / math.max(1, tonumber(seq) - tonumber(head or '1') + 1)
  count = 1 + math.max(1, math.min(500, math.floor(most_bytes / (each + ENTRY_BYTES))))
elseif tonumber(known[9] or '0') > 0 and not redis.call('XRANGE', stream, '-', place, 'COUNT', 1)[1] then
  -- The oldest are cut first: where one stands at the place or before it, all behind it are there.
  cut = 1
end
local entries, written, size = {}, '', 0
local digests, given = {}, {}
local from, more, whole = place, true, 1
while more do
  local rows = redis.call('XRANGE', stream, from, stop, 'COUNT', count)
  more = #rows == count
  for _, row in ipairs(rows) do
    local fields = row[2]
    if row[1] == place then
      written = fields[8]
    else
      local bytes, drawn = ENTRY_BYTES, {}
      for index = 2, #fields, 2 do
        bytes = bytes + #fields[index]
        if string.find(fields[index], '\26', 1, true) then
          for digest in string.gmatch(fields[index], '\26%l(%x+)\26') do
            bytes = bytes + redis.call('HSTRLEN', files, digest)
            drawn[#drawn + 1] = digest
          end
        end
      end
      -- One is given however large it is.
      if size > 0 and size + bytes > most_bytes then
        more, whole = false, 0
        break
      end
      size = size + bytes
      entries[#entries + 1] = row
      for _, digest in ipairs(drawn) do
        if not given[digest] then
          given[digest] = true
          digests[#digests + 1] = digest
        end
      end
    end
  end
  if more then
    from = '(' .. rows[#rows][1]
    count = 4
    if size > 0 then
      -- As many as should fit, by those that came.
      count = math.max(1, math.min(500, math.floor((most_bytes - size) * #entries / size)))
    end
  end
end
return { known, written, entries, digests, whole, cut }
