-- Delete the oldest receipts. KEYS[1] receipts. ARGV: microseconds before which they are to go, how many at most.
-- Returns how many went.
local count = math.min(redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1]), tonumber(ARGV[2]))
if count > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, count - 1)
end
return count
