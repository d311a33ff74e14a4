/* nll FILE IDS FIRST: from the logits that mere logits wrote of the ids, -ln p of each token from
 * number FIRST + 1 on, one a line; in double throughout. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { IDS_MAX = 1 << 16 };

int main(int argc, char **argv)
{
    static long ids[IDS_MAX];
    FILE *f = argc == 4 ? fopen(argv[1], "rbe") : NULL;
    uint64_t header;
    if (!f || fread(&header, sizeof header, 1, f) != 1 || fseek(f, 0, SEEK_END) != 0)
        return 2;
    int n = 0;
    for (char *p = argv[2]; *p && n < IDS_MAX; p += *p == ',')
        ids[n++] = strtol(p, &p, 10);
    const long vocab = (ftell(f) - 8 - (long)header) / n / 4;
    float *row = malloc((size_t)vocab * sizeof *row);
    for (long i = strtol(argv[3], NULL, 10); row && i + 1 < n; i++) {
        if (fseek(f, 8 + (long)header + i * vocab * 4, SEEK_SET) != 0 ||
            fread(row, 4, (size_t)vocab, f) != (size_t)vocab)
            return 2;
        double most = -HUGE_VAL;
        double sum = 0;
        for (long k = 0; k < vocab; k++)
            most = fmax(most, (double)row[k]);
        for (long k = 0; k < vocab; k++)
            sum += exp((double)row[k] - most);
        printf("%.12g\n", log(sum) + most - (double)row[ids[i + 1]]);
    }
    free(row);
    fclose(f);
    return 0;
}
