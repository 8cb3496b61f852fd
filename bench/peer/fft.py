"""PyTorch: Fourier transforms of batches of signals, an image, a prime length; a spectrogram with its gradient."""
import peer

REPEATS = 15


def main():
    args = peer.arguments(__doc__)
    import torch
    torch.manual_seed(1)
    fft = torch.fft
    lines, prime, image = (torch.randn(*s, dtype=torch.complex64) for s in ((256, 1024), (64, 1009), (512, 512)))
    real, long = torch.randn(256, 1024), torch.randn(1048576, dtype=torch.complex64)
    signal = torch.randn(8, 16000, requires_grad=True)
    window = torch.hann_window(400)

    def stft_backward():
        torch.stft(signal, 400, 160, window=window, return_complex=True).abs().square().sum().backward()

    work = dict(
        fft=lambda: fft.fft(lines),
        rfft=lambda: fft.rfft(real),
        fft_long=lambda: fft.fft(long),
        fft_prime=lambda: fft.fft(prime),
        fft2=lambda: fft.fft2(image),
        stft_backward=stft_backward)
    peer.emit(args, **{name + "_ms": 1e3 * peer.median_seconds(fn, REPEATS, 1) for name, fn in work.items()})


if __name__ == "__main__":
    main()
