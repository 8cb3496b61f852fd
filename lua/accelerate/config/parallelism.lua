--- ParallelismConfig: how the ranks are divided into dims: copies and shards of the data parallel
--- part, and tensor, context and sequence parallelism.
---
---   local config = accelerate.ParallelismConfig { dp_replicate_size = 2, dp_shard_size = 2 }
---   local accelerator = accelerate.Accelerator { parallelism_config = config }
---
--- Sizes that are not given come from PARALLELISM_CONFIG_ variables, as the launcher sets them.
local dataclasses = require "accelerate.config.dataclasses"
local env = require "accelerate.utils.environment"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local NAME = "ParallelismConfig"
-- In the order of a mesh, the slowest first.
local DIMS = { "dp_replicate", "dp_shard", "cp", "sp", "tp" }
local NOT_THERE = { tp = "tensor", cp = "context", sp = "sequence" }

local FIELDS = {
  cp_backend = { "string", optional = true, one_of = { "torch" } },
  sp_backend = { "string", optional = true, one_of = { "deepspeed" } },
  tp_handler = { "table", optional = true }, cp_handler = { "table", optional = true },
  sp_handler = { "table", optional = true },
}
for _, dim in ipairs(DIMS) do FIELDS[dim .. "_size"] = { "integer", optional = true, min = 1 } end

-- ---- fields that follow from the sizes

local function size(self, dim) return self._values[dim .. "_size"] end

-- The dims of a list that are larger than 1.
local function active(self, dims)
  local list = {}
  for _, dim in ipairs(dims) do
    if size(self, dim) > 1 then list[#list + 1] = dim end
  end
  return list
end

local function names(...)
  local dims = { ... }
  return function(self) return active(self, dims) end
end

local function product(...)
  local dims = { ... }
  return function(self)
    local n = 1
    for _, dim in ipairs(dims) do n = n * size(self, dim) end
    return n
  end
end

local GET = {
  total_size = product(unpack(DIMS)),
  data_parallel_size = product("dp_replicate", "dp_shard"),
  non_data_parallel_size = product("tp", "cp", "sp"),
  dp_dim_names = names("dp_replicate", "dp_shard"),
  non_dp_dim_names = names("tp", "cp", "sp"),
  dp_shard_cp_dim_names = names("dp_shard", "cp"),
  dp_cp_dim_names = names("dp_replicate", "dp_shard", "cp"),
  active_mesh_dims = names("dp_replicate", "dp_shard", "tp", "cp", "sp"),
  fsdp_dim_names = function(self)
    local list = active(self, { "dp_replicate" })
    list[#list + 1] = "dp_shard_cp"
    return list
  end,
  device_mesh = function(self) return self._mesh end,
}
for _, dim in ipairs(DIMS) do
  GET[dim .. "_enabled"] = function(self) return size(self, dim) > 1 end
end

-- ---- checks

-- Takes what was not given from a variable, or the default.
local function settle(self, field, default)
  local values, variable = self._values, "PARALLELISM_CONFIG_" .. field:upper()
  if values[field] ~= nil then
    self._from[field] = "parallelism_config." .. field
    return
  end
  local text = env.text(variable)
  if text then
    self._from[field] = variable
    values[field] = options.value(NAME, variable, FIELDS[field][1] == "integer" and tonumber(text) or text,
      FIELDS[field])
  else
    values[field] = default
  end
end

local function check_together(self)
  if size(self, "cp") > 1 and size(self, "sp") > 1 then
    fail("%s: cp_size = %d and sp_size = %d: context and sequence parallelism exclude each other; set " ..
      "one of them to 1", NAME, size(self, "cp"), size(self, "sp"))
  end
  if (size(self, "tp") > 1 or size(self, "cp") > 1) and size(self, "dp_replicate") > 1
    and size(self, "dp_shard") == 1 then
    fail("%s: tensor and context parallelism (tp_size = %d, cp_size = %d) do not go with copies alone " ..
      "(dp_replicate_size = %d, dp_shard_size = 1); set dp_shard_size above 1, or dp_replicate_size to 1",
      NAME,
      size(self, "tp"), size(self, "cp"), size(self, "dp_replicate"))
  end
  for dim, what in pairs(NOT_THERE) do
    if size(self, dim) > 1 then
      fail("%s: %s_size = %d (%s): %s parallelism is not there yet; leave it at 1", NAME, dim,
        size(self, dim),
        self:_origin(dim .. "_size"), what)
    end
  end
end

local function note_handlers(self)
  for dim in pairs(NOT_THERE) do
    if self._values[dim .. "_handler"] ~= nil then
      notice.main_once("%s: %s_handler has no effect while %s_size is 1", NAME, dim, dim)
    end
  end
end

-- ---- methods

local methods = {}

--- Makes the mesh: a group of ranks along each dim that is larger than 1, and along the joint dims
--- dp, dp_shard_cp and dp_cp. Every rank calls it at the same point; an Accelerator does.
---@return accelerate.Mesh? mesh nil where all sizes are 1
function methods.build_device_mesh(self)
  local sizes = {}
  for _, dim in ipairs(self.active_mesh_dims) do sizes[dim] = size(self, dim) end
  if next(sizes) == nil then return nil end
  return require("accelerate.distributed").mesh(sizes)
end

--- Returns the mesh; makes it at the first call (see build_device_mesh).
---@return accelerate.Mesh?
function methods.get_device_mesh(self)
  if self._mesh == nil then self._mesh = self:build_device_mesh() end
  return self._mesh
end

-- Where a field's value came from.
function methods._origin(self, field)
  local from = self._from[field]
  return from and env.origin(from) or "default"
end

-- Checks the sizes against the run. All sizes 1 means copies on all ranks.
function methods._validate(self, facts)
  if self.total_size == 1 then
    if facts.num_processes > 1 then
      self._values.dp_replicate_size, self._from.dp_replicate_size = facts.num_processes, "num_processes"
    end
  elseif self.total_size ~= facts.num_processes then
    fail("%s: the sizes multiply to %d, and the run has %d rank%s; change dp_replicate_size, " ..
      "dp_shard_size or num_processes", NAME, self.total_size, facts.num_processes,
      facts.num_processes == 1 and "" or "s")
  end
  local plugin = facts.fsdp_plugin
  if not plugin or facts.num_processes == 1 then return end
  if plugin.fsdp_version == 1 then
    fail("%s: it goes with FSDP2: give the plugin fsdp_version = 2 (%s), or leave the config out", NAME,
      plugin:_origin "fsdp_version")
  end
  if size(self, "dp_shard") == 1 then
    fail("%s: FSDP has no dim to cut over: dp_shard_size is 1 (%s); raise it, or leave FSDP out", NAME,
      self:_origin "dp_shard_size")
  end
end

---@class accelerate.ParallelismConfig
---@field dp_replicate_size integer copies of the model
---@field dp_shard_size integer ranks that each copy is cut over
---@field tp_size integer 1: tensor parallelism is not there yet
---@field cp_size integer 1: context parallelism is not there yet
---@field sp_size integer 1: sequence parallelism is not there yet
---@field total_size integer ranks in all
---@field data_parallel_size integer dp_replicate_size * dp_shard_size
---@field non_data_parallel_size integer
---@field dp_dim_names string[] the dims larger than 1 that get different batches
---@field non_dp_dim_names string[] those that get the same batch
---@field fsdp_dim_names string[]
---@field dp_shard_cp_dim_names string[]
---@field dp_cp_dim_names string[]
---@field active_mesh_dims string[] all dims larger than 1
---@field device_mesh accelerate.Mesh? once it was made

--- How the ranks are divided; all sizes are optional, and 1 by default.
M.ParallelismConfig = dataclasses._record(NAME, {
  fields = FIELDS, methods = methods, get = GET,
  assign = function(_, field) fail("%s: %s is set when the config is made", NAME, field) end,
  init = function(self)
    self._from = {}
    for _, dim in ipairs(DIMS) do settle(self, dim .. "_size", 1) end
    settle(self, "cp_backend", "torch")
    settle(self, "sp_backend", "deepspeed")
    check_together(self)
    note_handlers(self)
  end,
})

return M
