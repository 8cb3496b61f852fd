--- `log_with = "clearml"`: a ClearML task in offline form. `Task.import_offline_session(folder)`
--- uploads it later, where there is a server. Nothing is sent from here.
---
--- The folder is offline/offline-<id> below `dir` (CLEARML_CACHE_DIR, or ~/.clearml/cache). It
--- holds task.json, as Task.export_task writes it, metrics.jsonl with a list of events (ClearML's
--- events.add_batch) a line, and the pictures below data. A killed run leaves the whole of it.
local builtin = require "accelerate.tracking.builtin"
local env = require "accelerate.utils.environment"
local file = require "accelerate.tracking.file"
local json = require "accelerate.utils.json"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local png = require "accelerate.plot.png"
local values = require "accelerate.tracking.values"

local Class

local SINGLE = -2147483648  -- the iteration of values that belong to no step

--- Returns title and series of a name: "eval_loss" is the title "loss" in the series "eval".
local function title_of(name)
  for _, series in ipairs { "eval", "test", "train" } do
    if name:sub(1, #series + 1) == series .. "_" then return name:sub(#series + 2), series end
  end
  return name, "train"
end

local function event(self, kind, step, title, series, more)
  more.task, more.type, more.timestamp, more.method = self.tracker.id, kind, math.floor(file.now() * 1000),
    "get"
  more.iter, more.metric, more.variant = step, title, series
  return more
end

local function send(self, events)
  if #events > 0 then self._file:write(values.json(events) .. "\n") end
end

local function scalar(self, events, step, title, series, value)
  if type(value) == "boolean" then value = value and 1 or 0 end
  if value ~= value or math.abs(value) == math.huge then
    notice.here_once("clearml: '%s' of '%s' was %s, which ClearML does not take: such values are left out",
      title, series, tostring(value))
    return
  end
  if not step then
    step, title, series = SINGLE, "Summary", series == "train" and title or series .. "_" .. title
  end
  events[#events + 1] = event(self, "training_stats_scalar", step, title, series, { value = value })
end

--- Returns settings as the sections of a task have them: each value as text, beside its type.
local function parameters(config)
  local list = {}
  for _, entry in ipairs(values.flat(config)) do
    local name, value = tostring(entry[1]), entry[2]
    local kind, text = "str", value
    if type(value) == "boolean" then kind, text = "bool", value and "True" or "False"
    elseif type(value) == "number" then
      kind, text = value % 1 == 0 and "int" or "float", values.json(value) end
    list[name] = { description = "", name = name, section = "General", type = kind, value = text }
  end
  return list
end

local function describe(self)
  local task, o = self.tracker, self.init_kwargs
  local content = {
    id = task.id, name = task.name, project_name = task.project, type = o.task_type,
    offline_folder = task.dir,
    script = { binary = "accel-run", branch = "", diff = "", entry_point = arg and arg[0] or "",
      repository = "", version_num = "", working_dir = "." },
  }
  if task.config then
    content.configuration = { General = { name = "General", type = "dictionary",
      value = values.json(task.config) } }
    content.hyperparams = { General = parameters(task.config) }
  end
  if o.tags and #o.tags > 0 then content.tags = o.tags end
  file.save(task.dir .. "/task.json", json.encode(content) .. "\n")
end

local TYPES = { "training", "testing", "inference", "data_processing", "application", "monitor", "controller",
  "optimizer", "service", "qc", "custom" }

--- Returns a table as a figure of Plotly's, which is how ClearML keeps tables.
local function figure_of(title, series, columns, data)
  local cells = {}
  for j = 1, #columns do
    cells[j] = {}
    for i, row in ipairs(data) do
      local value = values.settings(row[j])
      cells[j][i] = value == nil and "" or value
    end
  end
  return { data = { { type = "table", header = { values = columns, align = "left" },
    cells = { values = cells, align = "left" } } }, layout = { title = series, ["title.text"] = title } }
end

Class = builtin.class("ClearMLTracker", { name = "clearml", requires_logging_directory = false }, {
  init = {
    project_name = { "string", optional = true }, task_name = { "string", optional = true },
    task_type = { "string", default = "training", one_of = TYPES }, tags = { "list", optional = true },
    dir = { "string", optional = true },
  },
  check = function(self)
    for i, tag in ipairs(self.init_kwargs.tags or {}) do
      if type(tag) ~= "string" then
        options.fail("ClearMLTracker: tags: entry %d must be a text, got %s", i, options.show(tag))
      end
    end
  end,
  log_images = { dataformats = { "string", optional = true } },
  log_table = builtin.TABLE,
}, {
  start = function(self)
    local o = self.init_kwargs
    local id = "offline-" .. file.random_hex(16)
    local cache = o.dir or env.text("CLEARML_CACHE_DIR", env.text("HOME", ".") .. "/.clearml/cache")
    local dir = ("%s/offline/%s"):format(cache, id)
    file.make_dirs(dir)
    self.tracker = { id = id, dir = dir, pictures = {},
      project = o.project_name or env.text("CLEARML_PROJECT", self.run_name),
      name = o.task_name or env.text("CLEARML_TASK", self.run_name) }
    self._file = file.open(dir .. "/metrics.jsonl", { new = true })
    describe(self)
  end,
  store_init_configuration = function(self, config)
    self.tracker.config = builtin.settings("ClearMLTracker:store_init_configuration", config)
    describe(self)
  end,
  log = function(self, given, opts)
    opts = Class.options_of("log", opts)
    local events = {}
    for _, entry in ipairs(values.read("clearml", builtin.values("ClearMLTracker:log", given))) do
      local name, value = entry[1], entry[2]
      if type(value) == "string" then
        notice.here_once("clearml: the value of '%s' is a text, " ..
          "and ClearML's scalars are numbers: it is left out",
          name)
      elseif type(value) == "table" then  -- the curves of one picture
        for _, key in ipairs(ordered.keys(value)) do
          scalar(self, events, opts.step, name, key, value[key])
        end
      else
        local title, series = title_of(name)
        scalar(self, events, opts.step, title, series, value)
      end
    end
    send(self, events)
  end,
  log_images = function(self, given, opts)
    opts = Class.options_of("log_images", opts)
    local task, events, where = self.tracker, {}, "ClearMLTracker:log_images"
    for _, name in ipairs(ordered.keys(builtin.values(where, given))) do
      local title, series = title_of(name)
      local folder = ("%s/%s.%s/metrics/%s/%s"):format(file.safe_name(task.project),
        file.safe_name(task.name),
        task.id, file.safe_name(title), series)
      file.make_dirs(task.dir .. "/data/" .. folder)
      for _, bytes in ipairs((png.files(where .. ": " .. name, given[name], opts.dataformats))) do
        local number = task.pictures[name] or 0
        task.pictures[name] = number + 1
        local key = ("%s/%s_%s_%08d.png"):format(folder, file.safe_name(title), series, number)
        local path = task.dir .. "/data/" .. key
        file.save(path, bytes)
        events[#events + 1] = event(self, "training_debug_image", opts.step or 0, title, series,
          { key = key, url = path })
      end
    end
    send(self, events)
  end,
  log_table = function(self, name, opts)
    opts = Class.options_of("log_table", opts)
    local columns, data = builtin.table_of("ClearMLTracker:log_table", name, opts)
    local title, series = title_of(name)
    send(self, { event(self, "plot", opts.step or 0, title, series,
      { plot_str = values.json(figure_of(title, series, columns, data)) }) })
  end,
  finish = function(self)
    if not self.tracker then return end
    describe(self)
    self._file:close()
  end,
})

return Class
