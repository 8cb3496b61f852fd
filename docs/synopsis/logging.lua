local accelerate = require "accelerate"
local logging = accelerate.logging

local logger = logging.get_logger("train", "INFO")
accelerate.Accelerator()
logger:info("loss %.3f after %d steps", 0.25, 10)                  -- main process
logger:warning("an odd batch", { main_process_only = false })      -- every process
logger:info("my share", { in_order = true })                       -- every process, one after the other
logger:warning_once("told only once")
