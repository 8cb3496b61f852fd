"""PyTorch: optimizer steps over 16 million parameters of float32."""
import peer


def main():
    args = peer.arguments(__doc__)
    import torch
    fused = {"fused": True} if args.fused else {}
    grad = torch.randn(4096, 4096)
    result = {}
    for name, Class, options in (
        ("momentum", torch.optim.SGD, dict(lr=1e-3, momentum=0.9, **fused)),
        ("adamw", torch.optim.AdamW, dict(lr=1e-3, **fused)),
        ("adagrad", torch.optim.Adagrad, dict(lr=1e-3, **fused)),
        ("rmsprop", torch.optim.RMSprop, dict(lr=1e-3)),
        ("adafactor", torch.optim.Adafactor, dict(lr=1e-3)),
    ):
        p = torch.randn(4096, 4096, requires_grad=True)
        p.grad = grad
        optimizer = Class([p], **options)
        result[name + "_ms"] = 1e3 * peer.median_seconds(optimizer.step, 9, 2)
    peer.emit(args, **result)


if __name__ == "__main__":
    main()
