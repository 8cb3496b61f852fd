--- What ranks tell one another while they may run different numbers of batches (uneven_inputs).
---
--- Before each reduction the ranks exchange a short message. A rank that still has batches sends
--- which reduction it is about to make. A rank that is done sends "done", and takes part in that
--- reduction without gradients of its own. When all ranks send "done", it is over. (PyTorch's Join
--- counts the ranks in this way.)
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

---@class accelerate.Announcements
---@field models accelerate.nn.Module[] those that are reduced
---@field root integer first rank that takes part in the current reduction with gradients of its own
---@field latest integer? a rank that continued after another one was done
---@field follows boolean whether this rank is done, and follows the others

-- The announcements of the scope that is open.
local open ---@type accelerate.Announcements?

-- prefix of the messages, which objects that a script gathers do not have
local MARK, DONE = "join: ", "join: done"

--- Exchanges what every rank is about to do. Returns the common text; nil when all ranks are done.
---@param self accelerate.Announcements
---@param mine string? nil: this rank is done
---@return string?
function M.exchange(self, mine)
  local all, common, root, done = core.dist.all_gather_bytes(mine and MARK .. mine or DONE), nil, nil, false
  for i, text in ipairs(all) do
    if text:sub(1, #MARK) ~= MARK then
      fail("join_uneven_inputs: rank %d gathers objects while this rank %s; only reductions of gradients " ..
        "go on when a rank is done", i - 1,
        mine and "is about to " .. mine or "is done")
    end
    text = text:sub(#MARK + 1)
    if text == "done" then
      done = true
    elseif common and text ~= common then
      fail("join_uneven_inputs: rank %d is about to %s, rank %d to %s: " ..
        "ranks that have batches must do the same", root, common,
        i - 1, text)
    elseif not common then
      common, root = text, i - 1
    end
  end
  self.root = root or 0
  if common and done then self.latest = root end
  return common
end

--- Returns whether reductions are announced.
---@return boolean
function M.are_made() return open ~= nil end

--- Returns the rank whose buffers all ranks take: the first that still has batches.
---@return integer
function M.root() return open and open.root or 0 end

--- Announces a reduction of a model to the other ranks, where reductions are announced.
---@param kind "reduce"|"divide"
---@param model accelerate.nn.Module
function M.announce(kind, model)
  if not open or open.follows then return end
  for i, known in ipairs(open.models) do
    if known == model then
      M.exchange(open, ("%s model %d"):format(kind, i))
      return
    end
  end
  fail("join_uneven_inputs: the gradients of a prepared model that is not among the joinables are " ..
    "reduced inside; add it to them")
end

--- Runs fn(announcements, ...), in which the reductions of some models are announced, and returns
--- what it returns.
---@param models accelerate.nn.Module[]
---@param fn fun(self: accelerate.Announcements, ...): ...
---@return any ...
function M.run(models, fn, ...)
  if open then fail("join_uneven_inputs: called inside another join_uneven_inputs") end
  local self = { models = models, root = 0, follows = false }
  return scope.run(function() open = self end, function() open = nil end, fn, self, ...)
end

return M
