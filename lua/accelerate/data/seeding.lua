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

--- The seed of a pass: an integer below 2^53.
---@param epoch integer the number of the pass
---@param rank integer
---@return integer
function M.pass(epoch, rank)
  local mixer = core.Generator()
  local seed = core.default_generator():get_state():sub(1, 8)
  -- a draw that nobody else makes
  mixer:set_state(seed .. little_endian(epoch % MANY, 4) .. little_endian(rank, 3) .. "\255")
  local drawn = core.randint(0, 2 ^ 53, { 1 }, { generator = mixer })
  local value = drawn:item()
  core.release(drawn)
  return value
end

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
