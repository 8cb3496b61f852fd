--- The options of notebook_launcher, which are Accelerate's. Those of torch's elastic rendezvous
--- are refused by name.
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

local OPTIONS = {
  max_restarts = { "integer", default = 0, min = 0 },
  monitor_interval = { "number", default = 0.05, above = 0 },
  num_processes = { "integer", min = 1, max = 256, optional = true },
  mixed_precision = { "string", one_of = { "no", "fp16", "bf16" }, optional = true },
  timeout = { "number", above = 0, default = 1800 },
  num_nodes = { "integer", min = 1, max = 256, default = 1 },
  node_rank = { "integer", min = 0, default = 0 },
  master_addr = { "string", default = "127.0.0.1" },
  use_port = { "string|integer", default = "29500" },
  rdzv_backend = { "string", default = "static" },
  rdzv_endpoint = { "string", optional = true },
  rdzv_id = { "string", default = "none" },
  rdzv_conf = { "table", optional = true },
  log_line_prefix_template = { "string", optional = true },
}

local CONF = { timeout = { "number", above = 0, optional = true }, rank = { "integer", optional = true } }

local function check_port(where, o)
  local port = tonumber(o.use_port)
  if not port or port % 1 ~= 0 or port < 1 or port > 65535 then
    fail("%s: option 'use_port' must be a number from 1 to 65535, got %s", where, options.show(o.use_port))
  end
  o.use_port = ("%d"):format(port)
end

-- Takes machine 0's address from "host:port" or "[host]:port".
local function take_endpoint(where, o)
  if not o.rdzv_endpoint or o.rdzv_endpoint == "" then return end
  local host, port = o.rdzv_endpoint:match "^%[(.+)%]:(%d+)$"
  if not host then host, port = o.rdzv_endpoint:match "^([^:]+):(%d+)$" end
  if not host then
    fail("%s: option 'rdzv_endpoint' must be 'host:port' of machine 0, got %s", where,
      options.show(o.rdzv_endpoint))
  end
  o.master_addr, o.use_port = host, port
end

local function check_conf(where, o)
  for _, name in ipairs(ordered.keys(o.rdzv_conf or {})) do
    if not CONF[name] then
      fail("%s: option 'rdzv_conf' has '%s', which belongs to torch's elastic rendezvous; the " ..
        "static one has 'timeout', the seconds of the meeting", where, tostring(name))
    end
  end
  local conf = options.check(where .. ": rdzv_conf", o.rdzv_conf, CONF)
  if conf.rank and conf.rank ~= o.node_rank then
    fail("%s: option 'rdzv_conf' has rank = %d, and node_rank is %d: leave the rank out", where, conf.rank,
      o.node_rank)
  end
  o.meeting_timeout = conf.timeout or o.timeout
end

--- Returns the checked options. Raises for what ranks that are forks cannot do.
---@param where string
---@param opts table?
---@return table
function M.check(where, opts)
  local o = options.check(where, opts, OPTIONS)
  if o.node_rank >= o.num_nodes then
    fail("%s: option 'node_rank' must be less than num_nodes, got %d of %d", where, o.node_rank, o.num_nodes)
  end
  if o.rdzv_backend ~= "static" then
    fail("%s: option 'rdzv_backend' must be 'static', got '%s': torch's elastic rendezvous numbers the " ..
      "machines " ..
      "itself and lets them come and go; here each machine has its node_rank, and all meet at master_addr",
      where,
      o.rdzv_backend)
  end
  if o.log_line_prefix_template then
    fail("%s: option 'log_line_prefix_template': the ranks print to this process's own stdout; " ..
      "accel-run --tee " ..
      "writes lines with the rank before them", where)
  end
  take_endpoint(where, o)
  check_port(where, o)
  check_conf(where, o)
  if o.num_processes and o.num_processes * o.num_nodes > OPTIONS.num_processes.max then
    fail("%s: %d machines with %d ranks each are %d ranks; there can be %d", where, o.num_nodes,
      o.num_processes,
      o.num_nodes * o.num_processes, OPTIONS.num_processes.max)
  end
  return o
end

--- Returns what the meeting of the machines takes.
---@param o table from check
---@return table
function M.meeting(o)
  return { num_nodes = o.num_nodes, node_rank = o.node_rank, ranks = o.num_nodes * o.num_processes,
    master_addr = o.master_addr, use_port = o.use_port, timeout = o.meeting_timeout, rdzv_id = o.rdzv_id }
end

-- The meeting's texts name accel-run's options.
local NAMES = { { "%-%-main_process_ip", "master_addr" }, { "%-%-main_process_port", "use_port" },
  { "%-%-machine_rank", "node_rank" }, { "%-%-num_machines", "num_nodes" },
  { "%-%-num_processes", "num_nodes x num_processes" }, { "%-%-timeout", "rdzv_conf.timeout" } }

--- Returns an error of the meeting with the names of notebook_launcher's options.
---@param text string
---@return string
function M.translated(text)
  text = tostring(text)
  for _, pair in ipairs(NAMES) do text = text:gsub(pair[1], pair[2]) end
  return text
end

return M
