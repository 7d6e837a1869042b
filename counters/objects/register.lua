-- Enter a counter into the registry and create its strata, all of them, so that one missing later has vanished.
-- KEYS[1] registry; KEYS[2..] strata. ARGV: name, spec as JSON, an empty dense HyperLogLog.
-- Returns the spec that holds: an existing counter keeps its own.
local existing = redis.call('HGET', KEYS[1], ARGV[1])
if existing and existing ~= ARGV[2] then
  return existing
end
if not existing then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  for i = 2, #KEYS do
    redis.call('SETNX', KEYS[i], ARGV[3])
  end
end
return ARGV[2]
