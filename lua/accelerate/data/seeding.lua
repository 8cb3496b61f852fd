--- The random numbers that reading a batch draws: transforms, augmentation, a stream's own choices.
---
--- While batch number b of a pass is read, the default generator (`tensor.rand`, `tensor.randint`,
--- data.transforms) stands at a place that depends on nothing but the seed (`tensor.manual_seed`),
--- the rank, the pass and b. So the batches are the same for any number of worker processes, with
--- none, and after a resume that skips to b; and reading ahead does not touch the numbers that the
--- step itself draws (dropout).
---
--- `math.random` is seeded in the same way in worker processes; in the main process it is left
--- alone, because its state cannot
--- be put back.
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

-- An integer below 2^53: a function of the default generator's seed and the eight bytes `draw`, a
-- draw that nobody else makes.
local function mixed(draw)
  local mixer = core.Generator()
  mixer:set_state(core.default_generator():get_state():sub(1, 8) .. draw)
  local drawn = core.randint(0, 2 ^ 53, { 1 }, { generator = mixer })
  local value = drawn:item()
  core.release(drawn)
  return value
end

--- The seed of a pass: an integer below 2^53.
---@param epoch integer the number of the pass
---@param rank integer
---@return integer
function M.pass(epoch, rank)
  return mixed(little_endian(epoch % MANY, 4) .. little_endian(rank, 3) .. "\255")
end

local current = {}

--- The seed of the default generator, as long as nobody seeds it: a table that is another one after
--- each seeding.
---@return { seedings: integer, seed: integer, samplers: integer } samplers: how many orders follow
---  it so far
function M.current()
  local seedings, seed = core._seedings(), core.default_generator():initial_seed()
  if current.seedings ~= seedings or current.seed ~= seed then
    current = { seedings = seedings, seed = seed, samplers = 0 }
  end
  return current
end

--- The seed of the order of sampler number `number` among those that follow the default generator:
--- an integer below 2^53.
---@param number integer from 0
---@return integer
function M.sampler(number) return mixed(little_endian(number, 7) .. "\254") end

-- The generator's state at the start of batch `number`: 2^32 draws for each.
local function state_at(seed, number)
  return little_endian(seed, 8) .. "\0\0\0\0" .. little_endian(number % MANY, 4)
end

local function finish(generator, state, ok, ...)
  generator:set_state(state)
  if not ok then error((...), 0) end
  return ...
end

--- Calls fn(...) with the default generator at its place for batch `number`, and puts it back
--- afterwards.
---@param seed integer of the pass
---@param number integer
---@return any ... what fn returns
function M.run(seed, number, fn, ...)
  local generator = core.default_generator()
  local state = generator:get_state()
  generator:set_state(state_at(seed, number))
  return finish(generator, state, pcall(fn, ...))
end

--- In a worker, which has nothing to put back: sets the default generator and math.random.
function M.set(seed, number)
  core.default_generator():set_state(state_at(seed, number))
  math.randomseed((seed + number * 2654435761) % 2 ^ 53)
end

return M
