-- Change which generations a counter has, if its entry in the registry still is the one that was seen.
-- KEYS[1] registry; KEYS[2..] strata that must be there, then strata to create empty, then strata to delete
-- ARGV: the counter, its entry as it was seen, the new one, an empty dense HyperLogLog,
--       number of strata that must be there, number to create
-- Returns 1; 0 if the entry is another one or a stratum that must be there is not: nothing was done.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
local needed = 1 + tonumber(ARGV[5])
local created = needed + tonumber(ARGV[6])
for i = 2, needed do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    return 0
  end
  local counted = redis.pcall('PFCOUNT', KEYS[i])
  if type(counted) == 'table' and counted.err then
    return redis.error_reply('FOREIGN ' .. KEYS[i] .. ' is no HyperLogLog; delete it')
  end
end
-- A full Redis refuses what comes first, and nothing after it: it takes what frees memory.
for i = needed + 1, created do
  redis.call('SET', KEYS[i], ARGV[4])
end
for i = created + 1, #KEYS do
  redis.call('DEL', KEYS[i])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
