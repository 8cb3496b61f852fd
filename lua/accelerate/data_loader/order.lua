--- What decides the order of a pass: the samplers of a prepared loader, their generators and the
--- epoch. `capture` and `restore` keep it; state_dict adds the number of batches given.
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local random = require "accelerate.utils.random"

local fail = options.fail

local M = {}

local function data() return require "accelerate.data" end

local function hex(bytes) return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end
local function unhex(text)
  return (text:gsub("%x%x", function(pair) return string.char(tonumber(pair, 16)) end))
end

-- Returns the batch sampler inside samplers that skip or shard.
local function innermost(batch_sampler)
  while type(batch_sampler) == "table" and type(batch_sampler.batch_sampler) == "table" do
    batch_sampler = batch_sampler.batch_sampler
  end
  return batch_sampler
end

local PARTS = { "batch_sampler", "sampler", "dataset" } -- in the order of calls

local function parts_of(self)
  return { batch_sampler = innermost(self._batch_sampler), sampler = innermost(self._sampler),
    dataset = self._base.dataset }
end

local function copied(value)
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local copy = {}
  for key, item in pairs(value) do copy[key] = copied(item) end
  return copy
end

M.copied = copied

local function has_state(part)
  return type(part) == "table" and type(part.state_dict) == "function"
    and type(part.load_state_dict) == "function"
end
local function has_generator(part)
  return type(part) == "table" and random.is_generator(rawget(part, "generator"))
end

--- Makes samplers that follow tensor.manual_seed read the seed of the pass that begins.
function M.read_seeds(self)
  local parts = parts_of(self)
  for _, name in ipairs(PARTS) do
    if class.is(parts[name], data().DrawnSampler) then parts[name]:read_seed() end
  end
end

--- Returns the positions of the samplers and the data set: the state of their generators, or their
--- own state_dict.
function M.capture(self)
  local found = {}
  local parts = parts_of(self)
  for _, name in ipairs(PARTS) do
    local part = parts[name]
    if has_state(part) then
      found[name] = { state = copied(part:state_dict()) }
    elseif has_generator(part) then
      local drawn = class.is(part, data().DrawnSampler)
      if drawn then part:read_seed() end
      found[name] = { generator = hex(part.generator:get_state()), epoch = drawn and part.epoch or nil }
    end
  end
  return found
end

--- Sets the samplers and the data set to the positions in `found`. Entries for parts that this
--- loader lacks are ignored.
function M.restore(self, found)
  for name, entry in pairs(found) do
    local generator = type(entry) == "table" and entry.generator
    if type(entry) ~= "table" or generator and not (type(generator) == "string" and generator:match("^%x+$")
      and #generator == 32) then
      fail("load_state_dict: what the state says of '%s' is damaged", tostring(name))
    end
  end
  local parts = parts_of(self)
  for _, name in ipairs(PARTS) do
    local part, entry = parts[name], found[name]
    if entry and entry.state ~= nil and has_state(part) then
      part:load_state_dict(copied(entry.state))
    elseif entry and entry.generator and has_generator(part) then
      local generator_state = unhex(entry.generator)
      if class.is(part, data().DrawnSampler) then
        part:load_place(generator_state, entry.epoch)
      else
        part.generator:set_state(generator_state)
      end
    end
  end
end

--- Returns the generator that decides the order, or nil when there is none.
function M.generator_of(self)
  for _, name in ipairs { "sampler", "batch_sampler", "dataset" } do
    local owner = parts_of(self)[name]
    if owner and has_generator(owner) then return owner.generator end
  end
end

--- Returns the parts whose set_epoch is called in each pass. Our own samplers count passes
--- themselves, so they are left out unless their order is a function of the pass number.
function M.parts_with_epochs(self)
  local ours, parts = data(), {}
  for _, name in ipairs(PARTS) do
    local part = parts_of(self)[name]
    local wants = type(part) == "table" and type(part.set_epoch) == "function"
    local counts = class.is(part, ours.DrawnSampler) and not class.is(part, ours.SeedableRandomSampler)
    -- a BatchSampler only passes the call on to its sampler, which is in the list itself
    if wants and not counts and not class.is(part, ours.BatchSampler) then parts[#parts + 1] = part end
  end
  return parts
end

--- Chooses the samplers of a prepared loader: the loader's own, or with use_seedable_sampler
--- samplers whose order depends on the seed and the pass number only.
function M.choose_samplers(self, loader, config)
  local ours = data()
  self._batch_sampler, self._sampler = loader.batch_sampler, loader.sampler
  local inner = self._sampler
  if not config.use_seedable_sampler or not class.is(inner, ours.RandomSampler)
    or class.is(inner, ours.SeedableRandomSampler) then
    return
  end
  local seedable = ours.SeedableRandomSampler(inner.data_source, {
    data_seed = config.data_seed, replacement = inner.replacement, num_samples = inner._num_samples,
  })
  local batches = self._batch_sampler
  self._sampler = seedable
  if class.of(batches) == ours.BatchSampler then
    self._batch_sampler = ours.BatchSampler(seedable,
      { batch_size = batches.batch_size, drop_last = batches.drop_last })
  elseif batches then -- a script's own batch sampler keeps its way of making batches
    innermost(batches).sampler = seedable
  end
end

--- Sets the number of the next pass where the parts have set_epoch.
function M.set_epoch(self, epoch)
  local parts = parts_of(self)
  for _, name in ipairs(PARTS) do
    local part = parts[name]
    if type(part) == "table" and type(part.set_epoch) == "function" then part:set_epoch(epoch) end
  end
end

return M
