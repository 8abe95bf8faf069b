void cpu_red_fused_sum_sub_gt_or(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  float *const b2 = buffers[2];
  unsigned char *const b3 = buffers[3];
  const long total = 1L;
  for (long o = 0; o < total; o++) {
    float c0[43];
    float t0_all[43];
    int c1[43];
    int t1_all[43];
    for (long w = 0; w < 35L; w += 8L)
      {
        st_f32(c0 + w, splat_f32(0), 8);
        st_i32(c1 + w, splat_mask(0), 8);
        st_f32(t0_all + w, splat_f32(0), 8);
        st_i32(t1_all + w, splat_mask(0), 8);
      }
    for (long from_x0 = 0; from_x0 < 128L; from_x0 += 64L) {
      const long to_x0 = minl(from_x0 + 64L, 128L);
      for (long x0 = from_x0; x0 < to_x0; x0 += 1)
        {
          vf32 a0 = splat_f32(0);
          vf32 ea0 = splat_f32(0);
          vf32 p0_0 = splat_f32(0);
          vf32 t4 = splat_f32(0x1.0000000000000p-1f);
          for (long x1 = 0; x1 < 5L; x1 += 1)
            {
              for (long k = 0; k < 7L; k += 512L) {
                const long stop = minl(k + 512L, 7L);
                long x2 = k;
                for (; x2 + 8L <= stop; x2 += 8L) {
                  vf32 t1 = (vf32){b0[(35L * x0 + x1 + 5L * (x2 + 0L))], b0[(35L * x0 + x1 + 5L * (x2 + 1L))], b0[(35L * x0 + x1 + 5L * (x2 + 2L))], b0[(35L * x0 + x1 + 5L * (x2 + 3L))], b0[(35L * x0 + x1 + 5L * (x2 + 4L))], b0[(35L * x0 + x1 + 5L * (x2 + 5L))], b0[(35L * x0 + x1 + 5L * (x2 + 6L))], b0[(35L * x0 + x1 + 5L * (x2 + 7L))]};
                  p0_0 = add_f32(p0_0, t1);
                  vf32 t2 = ld_f32(c0 + (7L * x1 + x2), 8);
                  st_f32(c0 + (7L * x1 + x2), add_f32(t2, t1), 8);
                  vmask t3 = ld_i32(c1 + (7L * x1 + x2), 8);
                  vmask t5 = gt_f32(t1, t4);
                  st_i32(c1 + (7L * x1 + x2), or_mask(t3, t5), 8);
                }
                if (x2 < stop) { const int n = (int)(stop - x2);
                  float t6[8];
                  for (int l = 0; l < 8; l++) t6[l] = l < n ? b0[(35L * x0 + x1 + 5L * (x2 + l))] : 0;
                  vf32 t7 = ld_f32(t6, 8);
                  p0_0 = add_f32(p0_0, sel_f32(lt_i32(iota_i32(0), splat_i32(n)), t7, splat_f32(0)));
                  vf32 t8 = ld_f32(c0 + (7L * x1 + x2), 8);
                  st_f32(c0 + (7L * x1 + x2), add_f32(t8, t7), n);
                  vmask t9 = ld_i32(c1 + (7L * x1 + x2), 8);
                  vmask t10 = gt_f32(t7, t4);
                  st_i32(c1 + (7L * x1 + x2), or_mask(t9, t10), n);
                }
                { vf32 y = sub_f32(p0_0, ea0); vf32 z = add_f32(a0, y); ea0 = sub_f32(sub_f32(z, a0), y); a0 = z; } p0_0 = splat_f32(0);
              }
            }
          vf32 r0 = splat_f32(hsum_f32(a0));
          for (long x1 = 0; x1 < 5L; x1 += 1)
            {
              const long stop = 7L;
              long x2 = 0;
              for (; x2 + 8L <= stop; x2 += 8L) {
                vf32 t11 = (vf32){b0[(35L * x0 + x1 + 5L * (x2 + 0L))], b0[(35L * x0 + x1 + 5L * (x2 + 1L))], b0[(35L * x0 + x1 + 5L * (x2 + 2L))], b0[(35L * x0 + x1 + 5L * (x2 + 3L))], b0[(35L * x0 + x1 + 5L * (x2 + 4L))], b0[(35L * x0 + x1 + 5L * (x2 + 5L))], b0[(35L * x0 + x1 + 5L * (x2 + 6L))], b0[(35L * x0 + x1 + 5L * (x2 + 7L))]};
                vf32 t12 = sub_f32(t11, r0);
                st_f32(b1 + (35L * x0 + 7L * x1 + x2), t12, 8);
              }
              if (x2 < stop) { const int n = (int)(stop - x2);
                float t13[8];
                for (int l = 0; l < 8; l++) t13[l] = l < n ? b0[(35L * x0 + x1 + 5L * (x2 + l))] : 0;
                vf32 t14 = ld_f32(t13, 8);
                vf32 t15 = sub_f32(t14, r0);
                st_f32(b1 + (35L * x0 + 7L * x1 + x2), t15, n);
              }
            }
        }
      for (long w = 0; w < 35L; w += 8L)
        {
          st_f32(t0_all + w, add_f32(ld_f32(t0_all + w, 8), ld_f32(c0 + w, 8)), 8); st_f32(c0 + w, splat_f32(0), 8);
          st_i32(t1_all + w, or_mask(ld_i32(t1_all + w, 8), ld_i32(c1 + w, 8)), 8); st_i32(c1 + w, splat_mask(0), 8);
        }
    }
    {
      for (long x1 = 0; x1 < 5L; x1 += 1)
        {
          long x2 = 0;
          for (; x2 + 8L <= 7L; x2 += 8L) {
            vf32 t16 = ld_f32(t0_all + (7L * x1 + x2), 8);
            st_f32(b2 + (7L * x1 + x2), t16, 8);
            vmask t17 = ld_i32(t1_all + (7L * x1 + x2), 8);
            st_bool(b3 + (7L * x1 + x2), t17, 8);
          }
          if (x2 < 7L) { const int n = (int)(7L - x2);
            vf32 t18 = ld_f32(t0_all + (7L * x1 + x2), 8);
            st_f32(b2 + (7L * x1 + x2), t18, n);
            vmask t19 = ld_i32(t1_all + (7L * x1 + x2), 8);
            st_bool(b3 + (7L * x1 + x2), t19, n);
          }
        }
    }
  }
}

void cpu_poi_copy(void **buffers, const long *sizes) {
  unsigned char *const b0 = buffers[0];
  unsigned char *const b1 = buffers[1];
  const long x0_blocks = (35L + 4095L) / 4096L;
  const long total = 1L * x0_blocks;
  for (long o = 0; o < total; o++) {
    const long x0_from = o % x0_blocks * 4096L;
    const long x0_to = minl(x0_from + 4096L, 35L);
    const long x0_rest = o / x0_blocks;
    {
      const long stop = x0_to;
      long x0 = x0_from;
      for (; x0 + 8L <= stop; x0 += 8L) {
        vmask t1 = ld_bool(b0 + x0, 8);
        st_bool(b1 + x0, t1, 8);
      }
      if (x0 < stop) { const int n = (int)(stop - x0);
        vmask t2 = ld_bool(b0 + x0, n);
        st_bool(b1 + x0, t2, n);
      }
    }
  }
}
