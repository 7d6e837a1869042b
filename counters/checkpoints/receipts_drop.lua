-- Receipts without an effect. KEYS[1] receipts. ARGV: ids. Returns how many are new.
local missing = receipts.missing(KEYS[1], ARGV)
for _, id in ipairs(missing) do
  receipts.write(KEYS[1], id)
end
return #missing
