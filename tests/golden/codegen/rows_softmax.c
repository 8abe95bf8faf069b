void cpu_red_fused_max_sub_exp_sum_div(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long total = 64L;
  #pragma omp parallel for schedule(static)
  for (long o = 0; o < total; o++) {
    const long x0 = o;
    float s0[308];
    vf32 a0 = splat_f32(-__builtin_inff());
    vf32 p0_0 = splat_f32(-__builtin_inff());
    vf32 p0_1 = splat_f32(-__builtin_inff());
    vf32 p0_2 = splat_f32(-__builtin_inff());
    vf32 p0_3 = splat_f32(-__builtin_inff());
    {
      for (long k = 0; k < 300L; k += 2048L) {
        const long stop = minl(k + 2048L, 300L);
        long x1 = k;
        for (; x1 + 32L <= stop; x1 += 32L) {
          vf32 t1 = ld_f32(b0 + (300L * x0 + x1), 8);
          p0_0 = max_f32(p0_0, t1);
          vf32 t2 = ld_f32(b0 + (300L * x0 + (x1 + 8L)), 8);
          p0_1 = max_f32(p0_1, t2);
          vf32 t3 = ld_f32(b0 + (300L * x0 + (x1 + 16L)), 8);
          p0_2 = max_f32(p0_2, t3);
          vf32 t4 = ld_f32(b0 + (300L * x0 + (x1 + 24L)), 8);
          p0_3 = max_f32(p0_3, t4);
        }
        for (; x1 + 8L <= stop; x1 += 8L) {
          vf32 t5 = ld_f32(b0 + (300L * x0 + x1), 8);
          p0_0 = max_f32(p0_0, t5);
        }
        if (x1 < stop) { const int n = (int)(stop - x1);
          vf32 t6 = ld_f32(b0 + (300L * x0 + x1), n);
          p0_0 = max_f32(p0_0, sel_f32(lt_i32(iota_i32(0), splat_i32(n)), t6, splat_f32(-__builtin_inff())));
        }
        a0 = max_f32(a0, max_f32(max_f32(p0_0, p0_1), max_f32(p0_2, p0_3))); p0_0 = splat_f32(-__builtin_inff()); p0_1 = splat_f32(-__builtin_inff()); p0_2 = splat_f32(-__builtin_inff()); p0_3 = splat_f32(-__builtin_inff());
      }
    }
    vf32 r0 = splat_f32(hmax_f32(a0));
    vf32 a1 = splat_f32(0);
    vf32 ea1 = splat_f32(0);
    vf32 p1_0 = splat_f32(0);
    vf32 p1_1 = splat_f32(0);
    vf32 p1_2 = splat_f32(0);
    vf32 p1_3 = splat_f32(0);
    {
      for (long k = 0; k < 300L; k += 2048L) {
        const long stop = minl(k + 2048L, 300L);
        long x1 = k;
        for (; x1 + 32L <= stop; x1 += 32L) {
          vf32 t7 = ld_f32(b0 + (300L * x0 + x1), 8);
          vf32 t8 = sub_f32(t7, r0);
          vf32 t9 = exp_f32(t8);
          p1_0 = add_f32(p1_0, t9);
          st_f32(s0 + x1, t9, 8);
          vf32 t10 = ld_f32(b0 + (300L * x0 + (x1 + 8L)), 8);
          vf32 t11 = sub_f32(t10, r0);
          vf32 t12 = exp_f32(t11);
          p1_1 = add_f32(p1_1, t12);
          st_f32(s0 + (x1 + 8L), t12, 8);
          vf32 t13 = ld_f32(b0 + (300L * x0 + (x1 + 16L)), 8);
          vf32 t14 = sub_f32(t13, r0);
          vf32 t15 = exp_f32(t14);
          p1_2 = add_f32(p1_2, t15);
          st_f32(s0 + (x1 + 16L), t15, 8);
          vf32 t16 = ld_f32(b0 + (300L * x0 + (x1 + 24L)), 8);
          vf32 t17 = sub_f32(t16, r0);
          vf32 t18 = exp_f32(t17);
          p1_3 = add_f32(p1_3, t18);
          st_f32(s0 + (x1 + 24L), t18, 8);
        }
        for (; x1 + 8L <= stop; x1 += 8L) {
          vf32 t19 = ld_f32(b0 + (300L * x0 + x1), 8);
          vf32 t20 = sub_f32(t19, r0);
          vf32 t21 = exp_f32(t20);
          p1_0 = add_f32(p1_0, t21);
          st_f32(s0 + x1, t21, 8);
        }
        if (x1 < stop) { const int n = (int)(stop - x1);
          vf32 t22 = ld_f32(b0 + (300L * x0 + x1), n);
          vf32 t23 = sub_f32(t22, r0);
          vf32 t24 = exp_f32(t23);
          p1_0 = add_f32(p1_0, sel_f32(lt_i32(iota_i32(0), splat_i32(n)), t24, splat_f32(0)));
          st_f32(s0 + x1, t24, n);
        }
        { vf32 y = sub_f32(add_f32(add_f32(p1_0, p1_1), add_f32(p1_2, p1_3)), ea1); vf32 z = add_f32(a1, y); ea1 = sub_f32(sub_f32(z, a1), y); a1 = z; } p1_0 = splat_f32(0); p1_1 = splat_f32(0); p1_2 = splat_f32(0); p1_3 = splat_f32(0);
      }
    }
    vf32 r1 = splat_f32(hsum_f32(a1));
    {
      const long stop = 300L;
      long x1 = 0;
      for (; x1 + 8L <= stop; x1 += 8L) {
        vf32 t25 = ld_f32(s0 + x1, 8);
        vf32 t26 = ld_f32(b0 + (300L * x0 + x1), 8);
        vf32 t27 = sub_f32(t26, r0);
        vf32 t28 = div_f32(t25, r1);
        st_f32(b1 + (300L * x0 + x1), t28, 8);
      }
      if (x1 < stop) { const int n = (int)(stop - x1);
        vf32 t29 = ld_f32(s0 + x1, n);
        vf32 t30 = ld_f32(b0 + (300L * x0 + x1), n);
        vf32 t31 = sub_f32(t30, r0);
        vf32 t32 = div_f32(t29, r1);
        st_f32(b1 + (300L * x0 + x1), t32, n);
      }
    }
  }
}
