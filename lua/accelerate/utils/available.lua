--- Features of this build, and versions.
---
--- `is_<what>_available()`, the functions with which upstream looks for its libraries: true where
--- this build does it itself (TensorBoard files, bfloat16, LOMO), false for libraries of Python,
--- which are never loaded here.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local function no() return false end
local function yes() return true end

--- Returns whether there is a Lua module of that name.
local function module(name)
  return function() return package.loaded[name] ~= nil or package.searchpath(name, package.path) ~= nil end
end

local function cuda() return (core.device_count("cuda")) > 0 end

local ANSWERS = {
  cuda = cuda,
  fp16 = cuda,                     -- mixed precision in float16 needs a GPU
  bf16 = yes,                      -- every processor level has bfloat16 kernels
  torch_distributed = yes,         -- process groups
  weights_only = yes,              -- files are read as data; nothing in them is run
  tqdm = module "accelerate.utils.tqdm",
  lomo = module "accelerate.optim.lomo",
  schedulefree = module "accelerate.optim.schedulefree",
  torchdata_stateful_dataloader = function()
    return (pcall(require("accelerate.config.dataclasses").DataLoaderConfiguration,
      { use_stateful_dataloader = true }))
  end,
}
for _, name in ipairs { "tensorboard", "wandb", "comet_ml", "aim", "mlflow", "clearml", "dvclive", "swanlab",
  "trackio" } do
  ANSWERS[name] = module("accelerate.tracking." .. name)
end

--- The other libraries and devices for which upstream has such a function. None is there.
local ABSENT = [[xccl import_timer pynvml amdsmi rocm pytest msamp transformer_engine
  transformer_engine_mxfp8 torch_xla torchao deepspeed pippy fp8 4bit_bnb 8bit_bnb bnb
  bitsandbytes_multi_backend torchvision megatron_lm transformers datasets peft timm triton boto3 rich
  sagemaker pandas matplotlib mps mlu musa npu sdaa hpu xpu neuron torchdata numpy ccl ipex]]
for name in ABSENT:gmatch("%S+") do ANSWERS[name] = no end

for name, answer in pairs(ANSWERS) do M["is_" .. name .. "_available"] = answer end

--- Returns whether the processor is Habana's Gaudi 1: never.
M.is_habana_gaudi1 = no

-- ---- versions

--- Returns the numbers by which a version is compared: "rc1", "beta3", "dev0" come before the
--- release itself.
local function parts_of(what, text)
  local main, rest = text:match("^v?(%d[%d%.]*)(.*)$")
  if not main then
    fail("compare_versions: %s must be a version such as \"2.1.0\", got %s", what, options.show(text))
  end
  local parts = {}
  for number in main:gmatch("%d+") do parts[#parts + 1] = tonumber(number) end
  while parts[#parts] == 0 and #parts > 1 do parts[#parts] = nil end  -- 2.1 is 2.1.0
  local stage, number = rest:lower():match("^[%.%-_]?(%a+)[%.%-_]?(%d*)")
  local order = ({ dev = -4, a = -3, alpha = -3, b = -2, beta = -2, rc = -1, c = -1, post = 1 })[stage] or 0
  return parts, order, tonumber(number) or 0
end

--- -1, 0 or 1.
local function order_of(a, b, what)
  local p, stage_p, number_p = parts_of(what, a)
  local q, stage_q, number_q = parts_of("requirement_version", b)
  for i = 1, math.max(#p, #q) do
    local x, y = p[i] or 0, q[i] or 0
    if x ~= y then return x < y and -1 or 1 end
  end
  if stage_p ~= stage_q then return stage_p < stage_q and -1 or 1 end
  if stage_p == 0 or number_p == number_q then return 0 end
  return number_p < number_q and -1 or 1
end

local OPERATIONS = {
  [">"] = function(o)
    return o > 0
  end, [">="] = function(o) return o >= 0 end, ["=="] = function(o) return o == 0 end,
  ["!="] = function(o)
    return o ~= 0
  end, ["<="] = function(o) return o <= 0 end, ["<"] = function(o) return o < 0 end,
}

local LIBRARIES = {
  accelerate = function() return core.version end,
  luajit = function() return (jit.version:gsub("^LuaJIT%s*", "")) end,
}

--- Compares a version with another one. In place of a version it takes the name of a library that
--- is part of this program ("accelerate", "luajit").
---@param library_or_version string
---@param operation ">"|">="|"=="|"!="|"<="|"<"
---@param requirement_version string
---@return boolean
function M.compare_versions(library_or_version, operation, requirement_version)
  options.value("compare_versions", "library_or_version", library_or_version, { "string" })
  options.value("compare_versions", "operation", operation,
    { "string", one_of = { ">", ">=", "==", "!=", "<=", "<" } })
  options.value("compare_versions", "requirement_version", requirement_version, { "string" })
  local version = library_or_version
  if not version:match("^v?%d") then
    local library = LIBRARIES[version:lower()]
    if not library then
      fail("compare_versions: there is no library '%s' here%s", version,
        options.hint(version, { "accelerate", "luajit" }))
    end
    version = library()
  end
  return OPERATIONS[operation](order_of(version, requirement_version, "library_or_version"))
end

--- Raises: there is no PyTorch here.
function M.is_torch_version()
  fail("is_torch_version: there is no PyTorch here; compare_versions(\"accelerate\", operation, version) " ..
    "compares this " ..
    "program's version")
end

return M
