-- The one atomic write of a flush: compare positions, add keys, store positions, stamp.
--
-- KEYS[1]  offsets hash of the group; KEYS[2] stamps hash; KEYS[3] a key for the script's own use;
-- KEYS[4]  registry; KEYS[5] definitions hash of the group; KEYS[6] checkpoints; KEYS[7] claim of the task;
-- KEYS[8]  receipts; KEYS[9..] the strata of every counter of the batch
-- ARGV     a flat list, read from left to right:
--          1 if this is the work of a task: token of its claim, the cursor it began from, then what
--          checkpoint.advance takes; else 0
--          n records,    then n times: its receipt, which must not be there yet
--          n topics,     then n times: topic, the definition of what is looked for in it
--          n partitions, then n times: field, position the worker last wrote ('' for none), new position
--          n topics,     then n times: topic, records counted
--          n counters,   then n times: name, its entry in the registry, number of its strata among KEYS (in order);
--                        a successor is a counter of its own here, with the name and the entry of its predecessor
--          n additions,  then n times: counter number, index into KEYS, number of keys, the keys;
--                        number 0: one HyperLogLog, to be merged
--
-- Returns  {'ok', numbers of the counters that could not take keys...} | {'applied'} | {'stale'} | {'redefined'}
--          | {'vanished', names...}
--          'applied': this very batch was written before, its answer got lost.
--          | {'fenced'} | {'moved'} | {'foreign'}: what checkpoint.refused says
--          | {'receipted'}: a record has a receipt already
local CHUNK = 4000 -- unpack() takes about 8,000 values

local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end

local task
if take() == '1' then
  local token, expected = take(), take()
  task = {take(), take(), take(), take(), take(), take()}
  local refused = checkpoint.refused(KEYS[6], KEYS[7], token, expected, task[1])
  if refused then
    return {refused}
  end
end

local records = {}
for i = 1, tonumber(take()) do
  records[i] = take()
end
if #receipts.missing(KEYS[8], records) < #records then
  return {'receipted'}
end

for _, key in ipairs({1, 2, 4, 5}) do -- later, part of the batch would be written already
  local kind = redis.call('TYPE', KEYS[key]).ok
  if kind ~= 'hash' and kind ~= 'none' then
    return redis.error_reply('FOREIGN ' .. KEYS[key] .. ' holds a ' .. kind .. ', not a hash; delete it')
  end
end

for _ = 1, tonumber(take()) do
  local topic, definition = take(), take()
  if redis.call('HGET', KEYS[5], topic) ~= definition then
    return {'redefined'}
  end
end

local fields, applied, stale = {}, 0, false
local partitions = tonumber(take())
for i = 1, partitions do
  local field, expected, new = take(), take(), take()
  local stored = redis.call('HGET', KEYS[1], field) or ''
  if stored ~= expected then
    if stored == new then
      applied = applied + 1
    else
      stale = true
    end
  end
  fields[2 * i - 1], fields[2 * i] = field, new
end
if stale or (applied > 0 and applied < partitions) then
  return {'stale'}
end
if applied > 0 then
  return {'applied'}
end

local topics = {}
for i = 1, tonumber(take()) do
  topics[i] = {take(), take()}
  local counted = redis.call('HGET', KEYS[1], topics[i][1])
  if counted and not tonumber(counted) then
    return redis.error_reply('FOREIGN ' .. KEYS[1] .. ' holds ' .. counted .. ' for ' .. topics[i][1] .. '; delete it')
  end
end

local counters, vanished, key = {}, {'vanished'}, 8
for i = 1, tonumber(take()) do
  local name, entry, strata = take(), take(), tonumber(take())
  local registered = redis.call('HGET', KEYS[4], name)
  if registered and registered ~= entry then
    stale = true -- repaired or rebuilt by another worker; the strata it had may well be gone
  elseif not registered or redis.call('EXISTS', unpack(KEYS, key + 1, key + strata)) < strata then
    vanished[#vanished + 1] = name
  end
  key = key + strata
  counters[i] = name
end
if stale then
  return {'stale'}
end
if #vanished > 1 then
  return vanished
end

-- Whether writes are refused (out of memory, read-only) is decided once, before the script runs: if the first
-- one passes, all do. Only a key of the wrong type may fail half-way, and costs its counter alone.
local answer, bad = {'ok'}, {}

-- One command on a stratum; an error that must end the script, or nil.
local function attempt(counter, ...)
  if bad[counter] then
    return nil
  end
  local result = redis.pcall(...)
  if type(result) == 'table' and result.err then
    if not (string.find(result.err, 'WRONGTYPE') or string.find(result.err, 'INVALIDOBJ')) then
      return result.err
    end
    bad[counter] = true
    answer[#answer + 1] = counter
  end
end

local merged = false
for _ = 1, tonumber(take()) do
  local counter, stratum, count = tonumber(take()), KEYS[tonumber(take())], tonumber(take())
  local failure
  if count == 0 then
    failure = attempt(counter, 'SET', KEYS[3], take()) or attempt(counter, 'PFMERGE', stratum, KEYS[3])
    merged = true
  end
  local last = at + count
  while at < last and not failure do
    local upto = math.min(at + CHUNK, last)
    failure = attempt(counter, 'PFADD', stratum, unpack(ARGV, at + 1, upto))
    at = upto
  end
  if failure then
    return redis.error_reply(failure)
  end
end
if merged then
  redis.call('DEL', KEYS[3])
end

for i = 1, #fields, CHUNK do
  redis.call('HSET', KEYS[1], unpack(fields, i, math.min(i + CHUNK - 1, #fields)))
end
for _, topic in ipairs(topics) do
  redis.call('HINCRBY', KEYS[1], topic[1], topic[2])
end
for _, id in ipairs(records) do
  receipts.write(KEYS[8], id)
end
if task then
  checkpoint.advance(KEYS[6], unpack(task, 1, 6))
end
local now = redis.call('TIME')
local stamp = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000))
for _, name in ipairs(counters) do
  redis.call('HSET', KEYS[2], name, stamp)
end
return answer
