--- `log_with = "jsonl"`: one JSON object a line, in <logging_dir>/<project>/metrics.jsonl. An
--- existing file is appended to.
---
---   {"loss": 0.5, "step": 1, "time": 1700000000.25}            log
---   {"config": {"lr": 0.001}, "time": ...}                     store_init_configuration
---   {"images": {"digits": ["images/digits_1_1.png"]}, ...}     log_images
---   {"table": "rows", "columns": [...], "data": [...], ...}    log_table
---
--- Logged values named `step` or `time` keep their names; the tracker's own are then `_step` and
--- `_time` on that line. NaN and the infinities, which JSON lacks, are the texts "NaN", "Infinity",
--- "-Infinity".
local builtin = require "accelerate.tracking.builtin"
local file = require "accelerate.tracking.file"
local png = require "accelerate.plot.png"
local values = require "accelerate.tracking.values"

local Class

local function put(self, line, step)
  line[line.step == nil and "step" or "_step"] = step
  line[line.time == nil and "time" or "_time"] = file.now()
  self.tracker:write(values.json(line) .. "\n")
end

Class = builtin.class("JSONLTracker", { name = "jsonl", requires_logging_directory = true }, {
  init = { file_name = { "string", default = "metrics.jsonl" } },
  log_images = { dataformats = { "string", optional = true } },
  log_table = builtin.TABLE,
}, {
  start = function(self)
    self.logging_dir = self.logging_dir_param .. "/" .. self.run_name
    file.make_dirs(self.logging_dir)
    self.tracker = file.open(self.logging_dir .. "/" .. self.init_kwargs.file_name)
  end,
  store_init_configuration = function(self, config)
    put(self, { config = builtin.settings("JSONLTracker:store_init_configuration", config) })
  end,
  log = function(self, given, opts)
    opts = Class.options_of("log", opts)
    local line = {}
    for _, entry in ipairs(values.read("jsonl", builtin.values("JSONLTracker:log", given))) do
      line[entry[1]] = entry[2]
    end
    if next(line) ~= nil then put(self, line, opts.step) end
  end,
  log_images = function(self, given, opts)
    opts = Class.options_of("log_images", opts)
    local paths = {}
    file.make_dirs(self.logging_dir .. "/images")
    for _, name in ipairs(require("accelerate.utils.ordered").keys(builtin.values("JSONLTracker:log_images",
      given))) do
      paths[name] = {}
      for i, bytes in ipairs((png.files("JSONLTracker:log_images: " .. name, given[name],
        opts.dataformats))) do
        self._pictures = (self._pictures or 0) + 1
        paths[name][i] = ("images/%s_%s_%d.png"):format(file.safe_name(name), opts.step or "x",
          self._pictures)
        file.save(self.logging_dir .. "/" .. paths[name][i], bytes)
      end
    end
    put(self, { images = paths }, opts.step)
  end,
  log_table = function(self, name, opts)
    opts = Class.options_of("log_table", opts)
    local columns, data = builtin.table_of("JSONLTracker:log_table", name, opts)
    put(self, { table = name, columns = columns, data = values.settings(data) }, opts.step)
  end,
  finish = function(self)
    if self.tracker then self.tracker:close() end
  end,
})

return Class
