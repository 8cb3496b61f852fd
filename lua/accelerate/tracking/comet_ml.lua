--- `log_with = "comet_ml"`: a Comet experiment in offline form. `comet upload <key>.zip` uploads it
--- later, where there is a network. Nothing is sent from here.
---
--- During the run its files are in <offline_directory>/<key>; end_training packs them into
--- <offline_directory>/<key>.zip. A killed run leaves the folder: `cd <key> && zip ../<key>.zip *`
--- completes it (stop_time is then the start). The folder holds experiment.json, messages.json with
--- one message a line (comet_ml/schemas/offline-*.schema.json), and the files that messages name.
local builtin = require "accelerate.tracking.builtin"
local env = require "accelerate.utils.environment"
local file = require "accelerate.tracking.file"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local png = require "accelerate.plot.png"
local values = require "accelerate.tracking.values"
local zip = require "accelerate.tracking.zip"

local Class

-- Stands in for JSON's null, which our writer lacks, until the text is replaced.
local NULL = "\1null\1"
local QUOTED = json.encode(NULL)

local function encode(value)
  local text = values.json(value)
  local from, stop = text:find(QUOTED, 1, true)
  while from do
    text = text:sub(1, from - 1) .. "null" .. text:sub(stop + 1)
    from, stop = text:find(QUOTED, from, true)
  end
  return text
end

local function milliseconds() return math.floor(file.now() * 1000) end

local function message(self, kind, payload)
  local experiment = self.tracker
  experiment.messages = experiment.messages + 1
  payload.message_id = experiment.messages
  self._file:write(encode { type = kind, payload = payload } .. "\n")
end

local function other(self, key, value) message(self, "log_other", { key = key, value = value }) end

local function metric(self, name, value, opts)
  if type(value) == "boolean" then value = value and 1 or 0 end
  message(self, "metric_msg", { local_timestamp = milliseconds(),
    metric = { metricName = name, metricValue = value, step = opts.step or NULL, epoch = opts.epoch
    or NULL } })
end

local function parameter(self, name, value)
  local list = type(value) == "table"
  message(self, "parameter_msg", { local_timestamp = milliseconds(),
    [list and "params" or "param"] = { paramName = name, paramValue = value, step = NULL,
    source = "manual" } })
end

--- Sends settings under names such as "optimizer|lr". Lists of plain values stay lists.
local function parameters(self, prefix, map)
  for _, key in ipairs(ordered.keys(map)) do
    local name, value = prefix .. key, map[key]
    if type(value) ~= "table" then parameter(self, name, value)
    elseif not ordered.is_list(value) then parameters(self, name .. "|", value)
    else
      local plain = #value > 0
      for _, entry in ipairs(value) do plain = plain and type(entry) ~= "table" end
      parameter(self, name, plain and value or values.json(value))
    end
  end
end

--- Saves a file beside the messages and adds a message about it.
local function upload(self, kind, extension, bytes, more)
  local name = ("file-%06d.%s"):format(self.tracker.messages + 1, extension)
  file.save(self.tracker.dir .. "/" .. name, bytes)
  more.context, more.extension, more.overwrite, more.runId = NULL, extension, false, NULL
  more.step = more.step or NULL
  message(self, "file_upload", { additional_params = more, clean = true, file_path = name,
    local_timestamp = milliseconds(), metadata = {},
    upload_type = kind })
  local names = self.tracker.files
  names[#names + 1] = name
end

local function describe(self)
  local experiment, o = self.tracker, self.init_kwargs
  file.save(experiment.dir .. "/experiment.json", encode {
    offline_id = experiment.key, project_name = self.run_name, workspace = o.workspace
      or env.text("COMET_WORKSPACE", NULL),
    start_time = experiment.start, stop_time = milliseconds(), tags = o.tags and #o.tags > 0 and o.tags
      or "\1list\1",
    resume_strategy = "create", customer_error_reported = false, customer_error_message = NULL,
    user_provided_experiment_key = o.experiment_key ~= nil, comet_start_sourced = false,
  }:gsub('"\\u0001list\\u0001"', "[]") .. "\n")
end

Class = builtin.class("CometMLTracker", { name = "comet_ml", requires_logging_directory = false }, {
  init = {
    workspace = { "string", optional = true }, experiment_name = { "string", optional = true },
    experiment_key = { "string", optional = true },
    offline_directory = { "string", optional = true }, tags = { "list", optional = true },
  },
  log = { epoch = { "integer", optional = true } },
  log_images = { dataformats = { "string", optional = true } },
  log_table = builtin.TABLE,
}, {
  start = function(self)
    local o = self.init_kwargs
    local key = o.experiment_key or env.text("COMET_EXPERIMENT_KEY") or file.random_hex(16)
    if not key:find("^%w+$") or #key < 32 or #key > 50 then
      options.fail("CometMLTracker: experiment_key must be 32 to 50 letters and digits, got '%s'", key)
    end
    local folder = o.offline_directory or env.text("COMET_OFFLINE_DIRECTORY", ".cometml-runs")
    local dir = folder .. "/" .. key
    file.make_dirs(dir)
    self.tracker = { key = key, folder = folder, dir = dir, start = milliseconds(), messages = 0, files = {} }
    self._file = file.open(dir .. "/messages.json", { new = true })
    describe(self)
    other(self, "offline_experiment", true)
    if o.experiment_name then other(self, "Name", o.experiment_name) end
  end,
  store_init_configuration = function(self, config)
    parameters(self, "", builtin.settings("CometMLTracker:store_init_configuration", config))
  end,
  log = function(self, given, opts)
    opts = Class.options_of("log", opts)
    for _, entry in ipairs(values.read("comet_ml", builtin.values("CometMLTracker:log", given))) do
      local name, value = entry[1], entry[2]
      if type(value) == "string" then other(self, name, value)
      elseif type(value) == "table" then
        for _, key in ipairs(ordered.keys(value)) do metric(self, name .. "_" .. key, value[key], opts) end
      else metric(self, name, value, opts) end
    end
  end,
  log_images = function(self, given, opts)
    opts = Class.options_of("log_images", opts)
    for _, name in ipairs(ordered.keys(builtin.values("CometMLTracker:log_images", given))) do
      for i, bytes in ipairs((png.files("CometMLTracker:log_images: " .. name, given[name],
        opts.dataformats))) do
        upload(self, "visualization", "png", bytes,
          { figName = name, figCounter = i - 1, imageId = file.random_hex(16), step = opts.step })
      end
    end
  end,
  log_table = function(self, name, opts)
    opts = Class.options_of("log_table", opts)
    local columns, data = builtin.table_of("CometMLTracker:log_table", name, opts)
    upload(self, "asset", "csv", require("accelerate.tracking.csv").text(columns, data),
      { assetId = file.random_hex(16), fileName = name:find("%.csv$") and name or name .. ".csv",
      step = opts.step })
  end,
  finish = function(self)
    local experiment = self.tracker
    if not experiment then return end
    self._file:close()
    describe(self)
    local entries = {}
    for _, name in ipairs { "experiment.json", "messages.json", unpack(experiment.files) } do
      local text, why = fs.read(experiment.dir .. "/" .. name)
      if not text then file.fail("%s", why) end
      entries[#entries + 1] = { name, text }
    end
    file.save(experiment.dir .. ".zip", zip.archive(entries))
    for _, entry in ipairs(entries) do os.remove(experiment.dir .. "/" .. entry[1]) end
    os.remove(experiment.dir)
  end,
})

return Class
