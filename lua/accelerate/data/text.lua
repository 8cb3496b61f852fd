--- Texts: JSON Lines read line by line, token shards written, batches of texts of like length.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local dataset = require "accelerate.data.dataset"
local ffi = require "ffi"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"
local sampler = require "accelerate.data.sampler"

local fail, show = options.fail, options.show

local M = {}

-- ---- JSON Lines

--- A stream of the objects of files with one JSON object on each line; blank lines do not count.
--- One line is in memory at a time. Raises for a line that is none, naming it.
---@class accelerate.JsonLines: accelerate.IterableDataset
---@field paths string[]
---@overload fun(paths: string|string[]): accelerate.JsonLines
local JsonLines = class("JsonLines", dataset.IterableDataset)
M.JsonLines = JsonLines

---@param paths string|string[]
function JsonLines:init(paths)
  if type(paths) == "string" then paths = { paths } end
  if type(paths) ~= "table" or #paths == 0 then
    fail("JsonLines: expected a path or a list of paths, got %s", show(paths))
  end
  for i, path in ipairs(paths) do options.value("JsonLines", ("paths[%d]"):format(i), path, { "string" }) end
  self.paths = paths
end

local function decode(path, number, line)
  local value, why = json.decode(line)
  if type(value) == "table" then return value end
  why = why and why:gsub("^json: ", ""):gsub(" at line %d+$", "") or "expected an object, got " .. show(value)
  fail("JsonLines: '%s': line %d: %s", path, number, why)
end

function JsonLines:iter()
  local at, file, number = 0, nil, 0
  return function()
    while true do
      local line = file and file:read "*l"
      if line then
        number = number + 1
        if line:find "%S" then return decode(self.paths[at], number, line) end
      else
        if file then file:close() end
        at, number = at + 1, 0
        if not self.paths[at] then
          at, file = #self.paths, nil
          return nil
        end
        local why
        file, why = io.open(self.paths[at], "rb")
        if not file then fail("JsonLines: %s", why) end
      end
    end
  end
end

-- ---- token shards

local SHARDS = {
  tokenizer = { "any" }, eos_token_id = { "integer", optional = true, min = 0 },
  dtype = { "string", optional = true, one_of = { "uint16", "uint32" } },
  shard_tokens = { "integer", default = 1e8, min = 1 },
}

-- Writes ids to files of at most `most` tokens each: prefix_00000.bin and so on.
local Writer = {}
Writer.__index = Writer

function Writer:flush()
  if self.n == 0 then return end
  local path = ("%s_%05d.bin"):format(self.prefix, #self.paths)
  local ok, why = core._write_file(path, ffi.string(self.buffer, self.n * self.width))
  if not ok then fail("write_token_shards: %s", why) end
  self.paths[#self.paths + 1], self.n = path, 0
end

function Writer:put(id)
  if id < 0 or id > self.largest or id % 1 ~= 0 then
    fail("write_token_shards: the id %s does not fit %s", tostring(id), self.dtype)
  end
  if self.n == self.room then
    local room = math.min(self.room * 2, self.most)
    local grown = ffi.new(self.type, room)
    ffi.copy(grown, self.buffer, self.n * self.width)
    self.buffer, self.room = grown, room
  end
  self.buffer[self.n] = id
  self.n, self.total = self.n + 1, self.total + 1
  if self.n == self.most then self:flush() end
end

--- Writes texts as files of token ids, which TokenDataset reads: prefix_00000.bin and so on,
--- little-endian, without a header. Text i is followed by eos_token_id (default: the tokenizer's).
---@param prefix string "data/train"
---@param texts string[]|fun(): string? a list, or a function that returns the next text
---@param opts { tokenizer: table, eos_token_id: integer?, dtype: "uint16"|"uint32"|nil,
---  shard_tokens: integer? } tokenizer: an object with encode(text, options) and len(); dtype:
---  default uint16 where all ids fit; shard_tokens: most tokens of a file, default 100 million
---@return string[] paths
---@return integer tokens
function M.write_token_shards(prefix, texts, opts)
  options.value("write_token_shards", "prefix", prefix, { "string" })
  local o = options.check("write_token_shards", opts, SHARDS)
  local tokenizer = o.tokenizer
  if type(tokenizer) ~= "table" or type(tokenizer.encode) ~= "function" then
    fail("write_token_shards: option 'tokenizer' must have a method encode, got %s", show(tokenizer))
  end
  local dtype = o.dtype or (tokenizer:len() <= 65536 and "uint16" or "uint32")
  local writer = setmetatable({ prefix = prefix, paths = {}, n = 0, total = 0, dtype = dtype,
    most = o.shard_tokens, room = math.min(65536, o.shard_tokens), width = dtype == "uint16" and 2 or 4,
    largest = dtype == "uint16" and 65535 or 2 ^ 32 - 1, type = dtype .. "_t[?]" }, Writer)
  writer.buffer = ffi.new(writer.type, writer.room)
  local eos = o.eos_token_id or tokenizer.eos_token_id
  local function write(text)
    options.value("write_token_shards", "a text", text, { "string" })
    for _, id in ipairs(tokenizer:encode(text, { add_special_tokens = false })) do writer:put(id) end
    if eos then writer:put(eos) end
  end
  if type(texts) == "function" then
    for text in texts do write(text) end
  else
    options.value("write_token_shards", "texts", texts, { "table" })
    for _, text in ipairs(texts) do write(text) end
  end
  writer:flush()
  return writer.paths, writer.total
end

-- ---- like lengths

--- Yields positions so that neighbours have like lengths: batches of them need little padding. Each
--- pass is a random order, cut into groups of mega_batches batches, which are sorted by falling
--- length; the longest text of all is in the first batch, so that memory that does not suffice
--- shows at once.
---@class accelerate.LengthGroupedSampler: accelerate.RandomSampler
---@field lengths integer[]
local Grouped = class("LengthGroupedSampler", sampler.RandomSampler)
M.LengthGroupedSampler = Grouped

local GROUPED = { batch_size = { "integer", min = 1 }, mega_batches = { "integer", default = 50, min = 1 },
  generator = { "Generator", optional = true }, seed = { "integer", optional = true } }

---@param lengths integer[] of the samples
---@param opts { batch_size: integer, mega_batches: integer?, generator: accelerate.Generator?,
---  seed: integer? }
function Grouped:init(lengths, opts)
  local o = options.check("LengthGroupedSampler", opts, GROUPED)
  if type(lengths) ~= "table" or getmetatable(lengths) then
    fail("LengthGroupedSampler: lengths must be a list of numbers, got %s", show(lengths))
  end
  for i = 1, #lengths do
    if type(lengths[i]) ~= "number" then
      fail("LengthGroupedSampler: lengths[%d] must be a number, got %s", i, show(lengths[i]))
    end
  end
  self.lengths, self._group = lengths, o.batch_size * o.mega_batches
  sampler.RandomSampler.init(self, #lengths, { generator = o.generator, seed = o.seed })
end

function Grouped:_order(generator)
  local n, lengths = #self.lengths, self.lengths
  local order = core.randperm(n, { generator = generator })
  if n == 0 then return order end
  local p, group, longest = order:data_ptr(), {}, 0
  for from = 0, n - 1, self._group do
    local size = math.min(self._group, n - from)
    local place = {}
    for i = 1, size do
      group[i] = tonumber(p[from + i - 1])
      place[group[i]] = i
    end
    for i = size + 1, #group do group[i] = nil end
    table.sort(group, function(a, b)
      if lengths[a + 1] ~= lengths[b + 1] then return lengths[a + 1] > lengths[b + 1] end
      return place[a] < place[b]
    end)
    for i = 1, size do p[from + i - 1] = group[i] end
    if lengths[group[1] + 1] > lengths[tonumber(p[longest]) + 1] then longest = from end
  end
  p[0], p[longest] = p[longest], p[0]
  return order
end

return M
