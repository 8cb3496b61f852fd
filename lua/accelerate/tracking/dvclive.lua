--- `log_with = "dvclive"`: DVCLive's folder, for `dvc metrics`, `dvc params`, `dvc plots` and the
--- extensions of editors. Nothing is committed or sent from here.
---
--- The folder is `dir`: params.yaml, metrics.json with the last values, a file
--- plots/metrics/<name>.tsv for each metric, plots/images. `dvcyaml` names them for DVC.
--- What an earlier run left there is removed, unless `resume` is true.
local builtin = require "accelerate.tracking.builtin"
local file = require "accelerate.tracking.file"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local png = require "accelerate.plot.png"
local values = require "accelerate.tracking.values"
local yaml = require "accelerate.utils.yaml"

local Class

-- ---- what the files hold

--- Returns the parts of a metric's name: the folders of its file, and the keys of metrics.json.
--- nil, with a notice, for a name that leaves the folder.
local function parts_of(name)
  local parts = {}
  for part in (name .. "/"):gmatch "([^/]*)/" do
    if not fs.is_plain_name(part) then
      notice.here_once("dvclive: the name '%s' cannot be the path of a file below " ..
        "plots/metrics, and is left out",
        name)
      return nil
    end
    parts[#parts + 1] = part
  end
  return parts
end

local function text_of(value)
  if type(value) == "boolean" then return value and "True" or "False" end
  if type(value) == "string" then
    if not value:find '[\t"\r\n]' then return value end
    return '"' .. value:gsub('"', '""') .. '"'
  end
  if value ~= value then return "nan" end
  if value == math.huge then return "inf" end
  if value == -math.huge then return "-inf" end
  return (json.encode(value))
end

--- Returns a value as metrics.json has it: Python's words for what JSON lacks.
local function summary_value(value)
  if type(value) == "number" and (value ~= value or math.abs(value) == math.huge) then
    return text_of(value)
  end
  return value
end

--- Sets a value below nested names. False when one of them has a value of its own (m beside m/a).
local function set(summary, parts, value)
  local at = summary
  for i = 1, #parts - 1 do
    if at[parts[i]] == nil then at[parts[i]] = {} end
    at = at[parts[i]]
    if type(at) ~= "table" then return false end
  end
  if type(at[parts[#parts]]) == "table" then return false end
  at[parts[#parts]] = value
  return true
end

local function metric(self, name, value, opts)
  local live, parts = self.tracker, parts_of(name)
  if not parts then return end
  if name == "step" or not set(live.summary, parts, summary_value(value)) then
    notice.here_once("dvclive: the name '%s' is taken by %s in metrics.json, and is left out", name,
      name == "step" and "the number of the step" or "the beginning or the end of another one")
    return
  end
  if opts.plot == false then return end
  local path = ("%s/plots/metrics/%s.tsv"):format(live.dir, name)
  file.make_dirs(path:match "^(.*)/")
  local head = opts.timestamp and "timestamp\tstep\t" or "step\t"
  local row = ("%d\t%s\n"):format(live.step, text_of(value))
  if opts.timestamp then row = ("%d\t"):format(file.now() * 1000) .. row end
  local fresh = not fs.exists(path)
  local out = file.open(path)
  out:write((fresh and head .. text_of(parts[#parts]) .. "\n" or "") .. row)
  out:close()
end

-- ---- dvc.yaml

--- Returns how a path is written from a folder below or above it. Both are relative, or both are
--- absolute.
local function from_folder(path, folder)
  local up, a, b = {}, {}, {}
  for part in path:gmatch "[^/]+" do if part ~= "." then a[#a + 1] = part end end
  for part in folder:gmatch "[^/]+" do if part ~= "." then b[#b + 1] = part end end
  local shared = 0
  while shared < #b and a[shared + 1] == b[shared + 1] do shared = shared + 1 end
  for _ = shared + 1, #b do up[#up + 1] = ".." end
  for i = shared + 1, #a do up[#up + 1] = a[i] end
  return table.concat(up, "/")
end

local function real(path) return fs.real(path) or path end

--- Returns the text of the run's dvc.yaml.
local function dvcyaml_text(live)
  local function place(path)
    return from_folder(real(live.dir) .. "/" .. path, real(live.dvcyaml:match "^(.*)/[^/]*$" or "."))
  end
  local content, plots = { metrics = { place "metrics.json" } }, {}
  if fs.exists(live.dir .. "/params.yaml") then content.params = { place "params.yaml" } end
  if fs.is_dir(live.dir .. "/plots/metrics") then plots[1] = { [place "plots/metrics"] = { x = "step" } } end
  if fs.is_dir(live.dir .. "/plots/images") then plots[#plots + 1] = place "plots/images" end
  if #plots > 0 then content.plots = plots end
  return yaml.encode(content)
end

--- Writes dvc.yaml. A file from elsewhere may have comments and stages, and stays.
local function write_dvcyaml(live)
  if not live.dvcyaml then return end
  local text = dvcyaml_text(live)
  local former = fs.read(live.dvcyaml)
  if former == text then return end
  if former and former ~= live.dvcyaml_text then
    notice.here_once(
      "dvclive: %s is there already and stays as it is; for DVC to show this run it needs:\n%s",
      live.dvcyaml, text)
    return
  end
  file.make_dirs(live.dvcyaml:match "^(.*)/[^/]*$" or ".")
  file.save(live.dvcyaml, text)
  live.dvcyaml_text = text
end

-- ---- the run

--- Ends a step: writes metrics.json, and counts on.
local function next_step(self)
  local live = self.tracker
  live.summary.step = live.step
  file.save(live.dir .. "/metrics.json", json.encode(live.summary, 4) .. "\n")
  write_dvcyaml(live)
  live.step = live.step + 1
end

--- Returns the values of the run that is resumed.
local function former_summary(dir)
  local path = dir .. "/metrics.json"
  if not fs.exists(path) then return {} end
  local text, why = fs.read(path)
  local summary = text and json.decode(text)
  if type(summary) ~= "table" then
    file.fail("cannot resume: %s is no JSON object%s", path, why and ": " .. why or "")
  end
  return summary
end

local function remove_former(dir)
  for _, name in ipairs { "plots/metrics", "plots/images", "metrics.json", "params.yaml" } do
    local ok, why = fs.remove_tree(dir .. "/" .. name)
    if not ok then file.fail("%s", why) end
  end
end

-- What Live does with DVC, git, a server or other packages of Python's, and files cannot.
local ELSEWHERE = {
  report = "needs DVC's renderer: `dvc plots show` makes such a report of the files",
  save_dvc_exp = "needs DVC and git: `dvc exp save` does it after the run",
  cache_images = "needs DVC: `dvc add` does it after the run",
  exp_name = "belongs to save_dvc_exp: `dvc exp save --name` sets it after the run",
  exp_message = "belongs to save_dvc_exp: `dvc exp save --message` sets it after the run",
  monitor_system = "needs psutil; accelerator:log takes what a script measures",
}

local function check(self)
  local o = self.init_kwargs
  for _, name in ipairs(ordered.keys(ELSEWHERE)) do
    if o[name] then options.fail("DVCLiveTracker: option '%s' %s; leave it out", name, ELSEWHERE[name]) end
  end
  o.dir = o.dir:gsub("(.)/+$", "%1")
  if o.dvcyaml == nil or o.dvcyaml == true then o.dvcyaml = "dvc.yaml" end
  if o.dvcyaml and o.dvcyaml:match "[^/]*$" ~= "dvc.yaml" then
    options.fail("DVCLiveTracker: dvcyaml must be a path that ends in dvc.yaml, or false, got '%s'",
      o.dvcyaml)
  end
end

local function start(self)
  local o = self.init_kwargs
  self.tracker = { dir = o.dir, dvcyaml = o.dvcyaml, step = 0, summary = {} }
  if o.resume then
    self.tracker.summary = former_summary(o.dir)
    self.tracker.step = (tonumber(self.tracker.summary.step) or -1) + 1
  else
    remove_former(o.dir)
  end
  file.make_dirs(o.dir)
end

local INIT = {
  dir = { "string", default = "dvclive" }, resume = { "boolean", default = false },
  dvcyaml = { "string|boolean", optional = true },
}
for name in next, ELSEWHERE do INIT[name] = { "any", optional = true } end  -- order does not matter

Class = builtin.class("DVCLiveTracker", { name = "dvclive", requires_logging_directory = false }, {
  init = INIT, check = check,
  log = { timestamp = { "boolean", default = false }, plot = { "boolean", default = true } },
  log_images = { dataformats = { "string", optional = true } },
  log_table = builtin.TABLE,
}, {
  start = start,
  store_init_configuration = function(self, config)
    local path = self.tracker.dir .. "/params.yaml"
    local given = builtin.settings("DVCLiveTracker:store_init_configuration", config)
    local ok, params = pcall(yaml.decode, fs.read(path) or "{}", path)
    if not ok or type(params) ~= "table" then params = {} end
    -- order does not matter: keys are distinct
    for key, value in next, given do params[key] = value end
    file.save(path, yaml.encode(params))
    write_dvcyaml(self.tracker)
  end,
  log = function(self, given, opts)
    opts = Class.options_of("log", opts)
    self.tracker.step = opts.step or self.tracker.step
    for _, entry in ipairs(values.read("dvclive", builtin.values("DVCLiveTracker:log", given))) do
      local name, value = entry[1], entry[2]
      if type(value) == "table" then
        for _, key in ipairs(ordered.keys(value)) do metric(self, name .. "/" .. key, value[key], opts) end
      else
        metric(self, name, value, opts)
      end
    end
    next_step(self)
  end,
  log_images = function(self, given, opts)
    opts = Class.options_of("log_images", opts)
    local where, step = "DVCLiveTracker:log_images", opts.step or self.tracker.step
    for _, name in ipairs(ordered.keys(builtin.values(where, given))) do
      local pictures = png.files(where .. ": " .. name, given[name], opts.dataformats)
      for i, bytes in ipairs(pictures) do
        local folder = ("%s/plots/images/%s%s"):format(self.tracker.dir, file.safe_name(name),
          #pictures > 1 and "_" .. i or "")
        file.make_dirs(folder)
        file.save(("%s/%d.png"):format(folder, step), bytes)
      end
    end
  end,
  log_table = function(self, name, opts)  -- DVC has no tables
    opts = Class.options_of("log_table", opts)
    local columns, data = builtin.table_of("DVCLiveTracker:log_table", name, opts)
    file.make_dirs(self.tracker.dir .. "/tables")
    file.save(("%s/tables/%s%s.csv"):format(self.tracker.dir, file.safe_name(name), opts.step and "_" ..
      opts.step
      or ""), require("accelerate.tracking.csv").text(columns, data))
  end,
  finish = function(self)
    if self.tracker then write_dvcyaml(self.tracker) end
  end,
})

return Class
