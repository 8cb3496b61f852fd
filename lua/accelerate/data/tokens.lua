--- Text for language models: files of token ids, mapped into memory.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local dataset = require "accelerate.data.dataset"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local OPTIONS = {
  block_size = { "integer", min = 1 },
  stride = { "integer", optional = true, min = 1 },
  dtype = { "string", optional = true, one_of = { "uint16", "uint32" } },
  header_bytes = { "integer", optional = true, min = 0 },
}

--- Windows of block_size tokens: sample i is x and y, int64 [block_size], where y is x one token
--- later. Windows begin stride tokens apart (default block_size: each token is predicted once) and
--- do not cross files.
---@class accelerate.TokenDataset: accelerate.Dataset
---@field block_size integer
---@field stride integer
---@field num_tokens integer
local TokenDataset = class("TokenDataset", dataset.Dataset)

--- The files hold little-endian uint16 (default) or uint32 ids, as numpy's tofile writes them.
--- llm.c's header is recognized and skipped; header_bytes: skip so many bytes instead (0: none).
---@param paths string|string[]
---@param opts { block_size: integer, stride: integer?, dtype: "uint16"|"uint32"|nil, header_bytes:
---  integer? }
function TokenDataset:init(paths, opts)
  local o = options.check("TokenDataset", opts, OPTIONS)
  if type(paths) == "string" then paths = { paths } end
  if type(paths) ~= "table" or getmetatable(paths) or #paths == 0 then
    fail("TokenDataset: expected a path or a list of paths, got %s", show(paths))
  end
  self.block_size, self.stride = o.block_size, o.stride or o.block_size
  self.num_tokens, self._shards, self._ends = 0, {}, {}
  local windows = 0
  for k, path in ipairs(paths) do
    local shard = core._tokens(path, o.dtype == "uint32" and 4 or o.dtype and 2 or 0, o.header_bytes or -1)
    local n = shard:size()
    self.num_tokens = self.num_tokens + n
    windows = windows + (n > self.block_size and math.floor((n - 1 - self.block_size) / self.stride) + 1 or 0)
    self._shards[k], self._ends[k] = shard, windows
  end
  if windows == 0 then
    fail("TokenDataset: '%s'%s: %d tokens, too few for one window of %d and the token after it", paths[1],
      #paths > 1 and (" and %d more"):format(#paths - 1) or "", self.num_tokens, self.block_size)
  end
end

function TokenDataset:len() return self._ends[#self._ends] end

--- A subclass that overrides only get must not be bypassed.
function TokenDataset:can_get_batch() return self.get == TokenDataset.get end

--- Returns x, y: int64 [batch, block_size] each.
---@param positions integer[]
function TokenDataset:get_batch(positions)
  local ends, which, at, n = self._ends, {}, {}, self:len()
  for j = 1, #positions do
    local i = positions[j]
    dataset.check_position("TokenDataset", i, n)
    local lo, hi = 1, #ends
    while lo < hi do
      local middle = math.floor((lo + hi) / 2)
      if ends[middle] >= i then hi = middle else lo = middle + 1 end
    end
    which[j], at[j] = lo, (i - (ends[lo - 1] or 0) - 1) * self.stride
  end
  return core._token_windows(self._shards, which, at, self.block_size)
end

function TokenDataset:get(i)
  local x, y = self:get_batch { i }
  return x:view(self.block_size), y:view(self.block_size)
end

return TokenDataset
