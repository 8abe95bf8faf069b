void cpu_red_fused_gt_or(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  unsigned char *const b1 = buffers[1];
  unsigned char *const b2 = buffers[2];
  const long total = 20L;
  for (long o = 0; o < total; o++) {
    const long x0 = o;
    vmask a0 = splat_mask(0);
    vmask p0_0 = splat_mask(0);
    vf32 t2 = splat_f32(0x1.0000000000000p-1f);
    {
      for (long k = 0; k < 31L; k += 512L) {
        const long stop = minl(k + 512L, 31L);
        long x1 = k;
        for (; x1 + 8L <= stop; x1 += 8L) {
          vf32 t1 = ld_f32(b0 + (31L * x0 + x1), 8);
          vmask t3 = gt_f32(t1, t2);
          st_bool(b1 + (31L * x0 + x1), t3, 8);
          p0_0 = or_mask(p0_0, t3);
        }
        if (x1 < stop) { const int n = (int)(stop - x1);
          vf32 t4 = ld_f32(b0 + (31L * x0 + x1), n);
          vmask t5 = gt_f32(t4, t2);
          st_bool(b1 + (31L * x0 + x1), t5, n);
          p0_0 = or_mask(p0_0, or_mask(and_mask(lt_i32(iota_i32(0), splat_i32(n)), t5), and_mask(not_mask(lt_i32(iota_i32(0), splat_i32(n))), splat_mask(0))));
        }
        a0 = or_mask(a0, p0_0); p0_0 = splat_mask(0);
      }
    }
    vmask r0 = splat_mask(hany(a0));
    st_bool(b2 + x0, r0, 1);
  }
}
