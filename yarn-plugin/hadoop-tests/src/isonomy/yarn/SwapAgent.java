package isonomy.yarn;

import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.security.CodeSource;
import java.security.ProtectionDomain;
import org.objectweb.asm.AnnotationVisitor;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;
import org.objectweb.asm.Type;

/**
 * Gives Hadoop's tests ten times their time-outs, which an idle, fast machine needs; with the argument `plugin` also
 * replaces CapacityScheduler by the plugin wherever the tests and the ResourceManager create or name it.
 */
public final class SwapAgent implements ClassFileTransformer {
  private static final String STOCK =
      "org/apache/hadoop/yarn/server/resourcemanager/scheduler/capacity/CapacityScheduler";
  private static final String OURS = "isonomy/yarn/SwappedScheduler";
  private static final String RM = "org/apache/hadoop/yarn/server/resourcemanager/ResourceManager";

  private static final String TIMEOUT = "Lorg/junit/jupiter/api/Timeout;";
  private static final int SLOWER = 10;
  private final boolean swaps;

  private SwapAgent(boolean swaps) {
    this.swaps = swaps;
  }

  public static void premain(String arguments, Instrumentation jvm) {
    jvm.addTransformer(new SwapAgent("plugin".equals(arguments)));
  }

  @Override
  public byte[] transform(ClassLoader loader, String name, Class<?> redefined, ProtectionDomain from, byte[] bytes) {
    CodeSource source = from == null ? null : from.getCodeSource();
    boolean ofTests = name != null && name.startsWith("org/apache/hadoop/yarn/")
        && source != null && source.getLocation().getPath().endsWith("-tests.jar");
    if (!ofTests && !(swaps && RM.equals(name))) {
      return null;
    }
    ClassReader reader = new ClassReader(bytes);
    ClassWriter writer = new ClassWriter(reader, 0);
    ClassVisitor slower = new Patience(writer);
    reader.accept(swaps ? new Swap(slower) : slower, 0);
    return writer.toByteArray();
  }

  /** Multiplies what @Timeout says, of a class or a method. */
  private static final class Patience extends ClassVisitor {
    Patience(ClassVisitor next) {
      super(Opcodes.ASM9, next);
    }

    private static AnnotationVisitor longer(String descriptor, AnnotationVisitor next) {
      return !TIMEOUT.equals(descriptor) ? next : new AnnotationVisitor(Opcodes.ASM9, next) {
        @Override
        public void visit(String name, Object value) {
          super.visit(name, value instanceof Long limit ? limit * SLOWER : value);
        }
      };
    }

    @Override
    public AnnotationVisitor visitAnnotation(String descriptor, boolean visible) {
      return longer(descriptor, super.visitAnnotation(descriptor, visible));
    }

    @Override
    public MethodVisitor visitMethod(int access, String name, String descriptor, String signature, String[] thrown) {
      return new MethodVisitor(Opcodes.ASM9, super.visitMethod(access, name, descriptor, signature, thrown)) {
        @Override
        public AnnotationVisitor visitAnnotation(String annotation, boolean visible) {
          return longer(annotation, super.visitAnnotation(annotation, visible));
        }
      };
    }
  }

  private static final class Swap extends ClassVisitor {
    Swap(ClassVisitor next) {
      super(Opcodes.ASM9, next);
    }

    @Override
    public void visit(int version, int access, String name, String signature, String parent, String[] interfaces) {
      super.visit(version, access, name, signature, STOCK.equals(parent) ? OURS : parent, interfaces);
    }

    @Override
    public MethodVisitor visitMethod(int access, String name, String descriptor, String signature, String[] thrown) {
      MethodVisitor next = super.visitMethod(access, name, descriptor, signature, thrown);
      return new MethodVisitor(Opcodes.ASM9, next) {
        @Override
        public void visitTypeInsn(int opcode, String type) {
          super.visitTypeInsn(opcode, opcode == Opcodes.NEW && STOCK.equals(type) ? OURS : type);
        }

        @Override
        public void visitMethodInsn(int opcode, String owner, String method, String of, boolean isInterface) {
          boolean swap = opcode == Opcodes.INVOKESPECIAL && STOCK.equals(owner);
          super.visitMethodInsn(opcode, swap ? OURS : owner, method, of, isInterface);
        }

        @Override
        public void visitLdcInsn(Object value) {
          boolean literal = value instanceof Type && Type.getObjectType(STOCK).equals(value);
          boolean text = STOCK.replace('/', '.').equals(value);
          super.visitLdcInsn(literal ? Type.getObjectType(OURS) : text ? OURS.replace('/', '.') : value);
        }
      };
    }
  }
}
