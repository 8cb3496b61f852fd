--- The random numbers that reading a batch draws: transforms, augmentation, a stream's own choices.
---
--- While batch number b of a pass is read, the default generator (`tensor.rand`, `tensor.randint`,
--- data.transforms) is in a state that depends only on the seed (`tensor.manual_seed`), the rank,
--- the pass and b. So batches are equal for any number of worker processes, without them, and after
--- a resume that skips to b. Reading ahead does not touch the numbers that the step draws
--- (dropout).
---
--- `math.random` is seeded in this way in worker processes. The main process leaves it alone,
--- because its state cannot be restored.
local core = require "accelerate.core"

local M = {}

local MANY = 2 ^ 32

local function little_endian(number, bytes)
  local list = {}
  for i = 1, bytes do
    list[i] = string.char(number % 256)
    number = math.floor(number / 256)
  end
  return table.concat(list)
end

-- Returns an integer below 2^53: a function of the default generator's seed and the eight bytes
-- `draw`, which name a draw that nothing else makes.
local function mixed(draw)
  local mixer = core.Generator()
  mixer:set_state(core.default_generator():get_state():sub(1, 8) .. draw)
  local drawn = core.randint(0, 2 ^ 53, { 1 }, { generator = mixer })
  local value = drawn:item()
  core.release(drawn)
  return value
end

--- Returns the seed of a pass: an integer below 2^53.
---@param epoch integer number of the pass
---@param rank integer
---@return integer
function M.pass(epoch, rank)
  return mixed(little_endian(epoch % MANY, 4) .. little_endian(rank, 3) .. "\255")
end

local current = {}

--- Returns the seed of the default generator, in a table that each seeding replaces.
---@return { seedings: integer, seed: integer, samplers: integer } samplers: number of samplers that
---  follow it so far
function M.current()
  local seedings, seed = core._seedings(), core.default_generator():initial_seed()
  if current.seedings ~= seedings or current.seed ~= seed then
    current = { seedings = seedings, seed = seed, samplers = 0 }
  end
  return current
end

--- Returns the seed of the order of sampler `number` among those that follow the default generator:
--- an integer below 2^53.
---@param number integer from 0
---@return integer
function M.sampler(number) return mixed(little_endian(number, 7) .. "\254") end

-- Returns the generator's state at the start of batch `number`; each batch has 2^32 draws.
local function state_at(seed, number)
  return little_endian(seed, 8) .. "\0\0\0\0" .. little_endian(number % MANY, 4)
end

local function finish(generator, state, ok, ...)
  generator:set_state(state)
  if not ok then error((...), 0) end
  return ...
end

--- Calls fn(...) with the default generator in its state for batch `number`, and restores it
--- afterwards.
---@param seed integer seed of the pass
---@param number integer
---@return any ... results of fn
function M.run(seed, number, fn, ...)
  local generator = core.default_generator()
  local state = generator:get_state()
  generator:set_state(state_at(seed, number))
  return finish(generator, state, pcall(fn, ...))
end

--- Sets the default generator and math.random, in a worker, which has nothing to restore.
function M.set(seed, number)
  core.default_generator():set_state(state_at(seed, number))
  math.randomseed((seed + number * 2654435761) % 2 ^ 53)
end

return M
