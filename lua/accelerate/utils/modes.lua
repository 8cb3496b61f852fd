--- Modes of a region of a script that what is computed again later has to be computed in, too:
--- nn.utils.checkpoint keeps them.
return {
  --- What layers that compute in eight bits do here (accelerate.precision.float8); nil: nothing.
  ---@type { recipe: table, notes: boolean }?
  float8 = nil,
}
