-- Written by draws.py with PyTorch 2.15.0+cu132.
return {absent={},cases={
{row="dropout",call=[=[F.dropout(x1, { p = 0.5, training = false })]=],tolerance=1e-09,
 inputs={{s={3},d="float64",v={-0.7916,0.3558,1.3463}}},
 outputs={{s={3},d="float64",v={-0.7916,0.3558,1.3463}}},
 grads={{s={3},d="float64",v={0.5,0.625,0.75}}}},
{row="dropout",call=[=[F.dropout(x1, { p = 0 })]=],tolerance=1e-09,
 inputs={{s={3},d="float64",v={-0.7916,0.3558,1.3463}}},
 outputs={{s={3},d="float64",v={-0.7916,0.3558,1.3463}}},
 grads={{s={3},d="float64",v={0.5,0.625,0.75}}}},
{row="dropout",call=[=[F.dropout(x1, { p = 1 })]=],tolerance=1e-09,
 inputs={{s={3},d="float64",v={-0.7916,0.3558,1.3463}}},
 outputs={{s={3},d="float64",v={0,0,0}}},
 grads={{s={3},d="float64",v={0,0,0}}}},
{row="_arange",call=[=[tensor.arange(2, 8, 3)]=],tolerance=1e-09,
 inputs={},
 outputs={{s={2},d="int64",v={2,5}}},
 grads={}}
}}
