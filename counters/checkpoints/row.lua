-- A checkpoint is a field of one hash: its name, and its row as a JSON object of strings. What every script that
-- writes one does to it. Prepended to those scripts, and to any whose own write includes a checkpoint's.
local checkpoint = {}

-- Microseconds by the server's clock.
function checkpoint.now()
  local time = redis.call('TIME')
  return time[1] .. string.format('%06d', time[2])
end

-- The row, nil where there is none. Something else in its place counts as none, and is replaced by the next write.
function checkpoint.read(hash, name)
  local stored = redis.call('HGET', hash, name)
  local decoded, row = pcall(cjson.decode, stored or '')
  if decoded and type(row) == 'table' then
    return row
  end
end

-- Set `fields` in the row, creating it where there is none. The value '@now' is the server's time.
function checkpoint.write(hash, name, fields)
  local row = checkpoint.read(hash, name) or { cursor = '{}', counts = '{}', desired = 'run', observed = 'idle' }
  local now = checkpoint.now()
  for field, value in pairs(fields) do
    row[field] = value == '@now' and now or value
  end
  row.updated_at = now
  redis.call('HSET', hash, name, cjson.encode(row))
end

-- Whether the write may be made: nil, or 'fenced' | 'moved' | 'foreign'.
-- token: of the claim, '' for none. expected: the cursor the batch began from; '*': any. No row is no position.
function checkpoint.refused(hash, claim, token, expected, name)
  if token ~= '' and redis.call('GET', claim) ~= token then
    return 'fenced'
  end
  local kind = redis.call('TYPE', hash).ok
  if kind ~= 'hash' and kind ~= 'none' then
    return 'foreign'
  end
  if expected ~= '*' and (checkpoint.read(hash, name) or { cursor = '{}' }).cursor ~= expected then
    return 'moved'
  end
end

-- Progress. cursor, counts, runner: '' leaves them; ok and failed are added up. A runner is stamped with the time:
-- the heartbeat.
function checkpoint.advance(hash, name, cursor, counts, runner, ok, failed)
  local row = checkpoint.read(hash, name) or {}
  local fields = {
    cursor = cursor ~= '' and cursor or nil,
    counts = counts ~= '' and counts or nil,
    ok = string.format('%.0f', (tonumber(row.ok) or 0) + ok),
    failed = string.format('%.0f', (tonumber(row.failed) or 0) + failed),
  }
  if runner ~= '' then
    fields.runner, fields.heartbeat_at, fields.observed = runner, '@now', 'running'
  end
  checkpoint.write(hash, name, fields)
end
