-- Damages files and hands them to their readers: each cut, each flipped bit, random bytes.  A
-- reader may raise, with a message that names the file, or give something; it may not crash (a
-- sanitizer's business, too), hold on to memory or take what a false header claims.
local bit = require "bit"
local core = require "accelerate.core"
local disk = require "spec.support.disk"

local M = {}

--- Returns the bytes and the structures that tensors hold when nothing is garbage. Compiled code of
--- earlier tests may hold tensors, so it goes first.
function M.held()
  jit.flush()
  for _ = 1, 3 do collectgarbage() end
  local s = core.memory_stats()
  return s.live_bytes, s.structs
end

-- A generator of its own: the damage is the same in every run.
local function numbers(seed)
  local state = seed
  return function(n)
    state = (state * 1103515245 + 12345) % 2 ^ 31
    return math.floor(state / 65536) % n
  end
end

--- Tries `read(path)` on damaged forms of `bytes`. `every`: take each every-th bit and cut of a
--- longer file; `rounds`: random ones.
---@return integer failures how many were refused
function M.damage(path, bytes, read, opts)
  local every, refused = opts and opts.every or 1, 0
  jit.off()
  local before, structs = M.held()
  local function try(damaged)
    disk.write(path, damaged)
    local ok, result = pcall(read, path)
    if not ok then
      refused = refused + 1
      assert(type(result) == "string" and result:find(path, 1, true), tostring(result))
    elseif core.is_tensor(result) then
      core.release(result)
    end
  end
  for n = 0, #bytes - 1, every do try(bytes:sub(1, n)) end
  for at = 1, #bytes * 8, every do
    local byte = math.floor((at - 1) / 8) + 1
    try(bytes:sub(1, byte - 1) .. string.char(bit.bxor(bytes:byte(byte), 2 ^ ((at - 1) % 8))) ..
      bytes:sub(byte + 1))
  end
  local random = numbers(opts and opts.seed or 1)
  for _ = 1, opts and opts.rounds or 200 do
    local list = { bytes:byte(1, -1) }
    for _ = 1, 1 + random(8) do list[1 + random(#list)] = random(256) end
    try(string.char(unpack(list)))
  end
  local after, structs_after = M.held()
  jit.on()
  assert(before == after and structs == structs_after,
    ("memory is held: %d bytes, %d structures"):format(after - before, structs_after - structs))
  return refused
end

return M
