// The two passes of `budget.py` over whole outputs, each in one sweep where torch needs a dozen.
//
// Not to be compiled with -ffast-math: NaN and infinity must come through.
#include <cmath>
#include <cstdint>

struct RowError {
    double squares = 0.0, largest = 0.0, dominant = 0.0;  // dominant: squares where the exact value is large
    double spread(int64_t columns, double rms_factor, double max_factor) const {
        const double rms = rms_factor * std::sqrt(squares / (double)columns);
        const double top = max_factor * largest;
        return rms > top ? rms : top;
    }
};

static RowError row_error(const float* value, const double* exact, int64_t columns, double least) {
    double squares = 0.0, largest = 0.0, dominant = 0.0;
#pragma omp simd reduction(+ : squares, dominant) reduction(max : largest)
    for (int64_t i = 0; i < columns; ++i) {
        const double error = std::fabs((double)value[i] - exact[i]);
        squares += error * error;
        dominant += std::fabs(exact[i]) >= least ? error * error : 0.0;
        largest = error > largest ? error : largest;
    }
    return {squares, largest, dominant};
}

// For each row: spread = that of the reference's errors or, if larger, `share` of that of the disturbed result's;
// size = its largest exact value; ratio = the squares of the errors over those of the exact values, both where
// these are at least size / `dominance`; live = how many of these are not zero. Spreads are NaN or infinite where
// a row's errors are.
extern "C" void row_spread(const float* reference, const float* disturbed, const double* exact, double* spread,
                           double* size, double* ratio, double* live, int64_t rows, int64_t columns,
                           double rms_factor, double max_factor, double share, double dominance) {
#pragma omp parallel for if (rows * columns > 65536)
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = row * columns;
        const double* e = exact + at;
        double top = 0.0, energy = 0.0, count = 0.0;
#pragma omp simd reduction(max : top) reduction(+ : count)
        for (int64_t i = 0; i < columns; ++i) {
            top = std::fabs(e[i]) > top ? std::fabs(e[i]) : top;
            count += e[i] != 0.0 ? 1.0 : 0.0;
        }
        const double least = top / dominance;
#pragma omp simd reduction(+ : energy)
        for (int64_t i = 0; i < columns; ++i) energy += std::fabs(e[i]) >= least ? e[i] * e[i] : 0.0;
        const RowError a = row_error(reference + at, e, columns, least);
        const RowError b = row_error(disturbed + at, e, columns, least);
        const double first = a.spread(columns, rms_factor, max_factor);
        const double second = share * b.spread(columns, rms_factor, max_factor);
        const double finite = a.squares + b.squares;  // the comparisons lose a NaN, a sum does not
        const double moved = share * share * b.dominant;
        spread[row] = std::isfinite(finite) ? (first > second ? first : second) : finite;
        size[row] = top;
        live[row] = count;
        ratio[row] = energy > 0.0 ? (a.dominant > moved ? a.dominant : moved) / energy : 0.0;
    }
}

// worst[0] = max |actual - exact| / (spread + relative |exact|); worst[1] counts what is beyond 1 or not a number.
extern "C" void worst_error(const float* actual, const double* exact, const double* spread,
                            const double* relative, int64_t rows, int64_t columns, double* worst) {
    double largest = 0.0;
    int64_t beyond = 0;
#pragma omp parallel for reduction(max : largest) reduction(+ : beyond) if (rows * columns > 65536)
    for (int64_t row = 0; row < rows; ++row) {
        const float* a = actual + row * columns;
        const double* e = exact + row * columns;
        const double allowed = spread[row], share = relative[row];
        double top = 0.0;
        int64_t over = 0;
#pragma omp simd reduction(max : top) reduction(+ : over)
        for (int64_t i = 0; i < columns; ++i) {
            const double error = std::fabs((double)a[i] - e[i]) / (allowed + share * std::fabs(e[i]));
            top = error > top ? error : top;
            over += !(error <= 1.0);
        }
        largest = top > largest ? top : largest;
        beyond += over;
    }
    worst[0] = largest;
    worst[1] = (double)beyond;
}
