--- How GPUs may compute: results that are equal in every run, float32 rounded to TF32. For the
--- whole process, under PyTorch's names.
local core = require "accelerate.core"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"

local M = {}
local warn_only = false

--- Chooses whether every run has to give the same bits. This library's default is true, PyTorch's
--- is false; with true every operation has a deterministic algorithm, so none raises. With false,
--- cuDNN may use engines whose sums have no fixed order, for shapes that are new from then on, and
--- NCCL, when it has not begun yet, reductions in the switch (NVLS).
---@param mode boolean
---@param opts? { warn_only: boolean? } accepted as in PyTorch; there is nothing to warn of
function M.use_deterministic_algorithms(mode, opts)
  opts = options.check("use_deterministic_algorithms", opts or {},
    { warn_only = { "boolean", default = false } })
  core.set_deterministic(mode)
  warn_only = mode and opts.warn_only
end

--- Returns whether every run has to give the same bits.
---@return boolean
function M.are_deterministic_algorithms_enabled() return core.get_deterministic() end

--- Returns whether use_deterministic_algorithms(true, { warn_only = true }) was called last.
---@return boolean
function M.is_deterministic_algorithms_warn_only_enabled() return warn_only end

local function group(name, get, set)
  return properties.define(name, { get = get, set = set }).new()
end

local function no() return false end

local benchmark = false

local cudnn = group("backends.cudnn", {
  allow_tf32 = core.get_convolution_tf32,
  deterministic = core.get_deterministic,
  benchmark = function() return benchmark end,
}, {
  allow_tf32 = function(_, value) core.set_convolution_tf32(value) end,
  deterministic = function(_, value) M.use_deterministic_algorithms(value) end,
  benchmark = function(_, value)
    benchmark = options.value("backends.cudnn", "benchmark", value, { "boolean" })
    if benchmark then
      notice.main_once("backends.cudnn.benchmark changes nothing: no algorithm is chosen by timing here")
    end
  end,
})
local matmul = group("backends.cuda.matmul", {
  allow_tf32 = function() return core.get_float32_matmul_precision() ~= "highest" end,
}, {
  allow_tf32 = function(_, value)
    if type(value) ~= "boolean" then
      options.fail("backends.cuda.matmul.allow_tf32: expected a boolean, got %s", options.show(value))
    end
    core.set_float32_matmul_precision(value and "high" or "highest")
  end,
})

--- Switches of CUDA's libraries, as torch.backends has them: cudnn.allow_tf32 (float32 convolutions
--- may round their operands to TF32: as set_float32_matmul_precision says until it is set;
--- PyTorch's default is true), cudnn.deterministic, cuda.matmul.allow_tf32. cudnn.benchmark may be
--- set, and changes nothing. mps.is_available() and mps.is_built() are false: there is no backend
--- for Apple's GPUs.
M.backends = properties.strict("tensor.backends", {
  cudnn = cudnn,
  cuda = properties.strict("tensor.backends.cuda", { matmul = matmul }),
  mps = properties.strict("tensor.backends.mps", { is_available = no, is_built = no }),
})

return M
