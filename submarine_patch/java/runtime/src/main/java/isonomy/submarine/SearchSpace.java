package isonomy.submarine;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.yaml.snakeyaml.Yaml;
import org.yaml.snakeyaml.constructor.SafeConstructor;
import org.yaml.snakeyaml.error.YAMLException;

/** The search space file: {@code parameters: {name: {type: float|int|choice, ...}}}. */
final class SearchSpace {
  private static final Map<String, Set<String>> KEYS = Map.of(
      "float", Set.of("type", "min", "max", "log"),
      "int", Set.of("type", "min", "max", "log"),
      "choice", Set.of("type", "values"));

  private SearchSpace() {
  }

  /** Reads and checks the file; returns its content under {@code parameters}. */
  static Map<String, Object> load(Path file) throws UserError {
    Object root = parse(file);
    if (!(root instanceof Map<?, ?> top) || !(top.get("parameters") instanceof Map<?, ?> parameters)
        || parameters.isEmpty()) {
      throw new UserError(file + ": a search space needs 'parameters:' with at least one parameter");
    }
    for (Object key : top.keySet()) {
      UserError.when(!"parameters".equals(key), file + ": unknown key '" + key + "'; the only one is 'parameters'");
    }
    Map<String, Object> checked = new LinkedHashMap<>();
    for (Map.Entry<?, ?> entry : parameters.entrySet()) {
      String name = String.valueOf(entry.getKey());
      checkParameter(file + ": parameter '" + name + "': ", name, entry.getValue());
      checked.put(name, entry.getValue());
    }
    return checked;
  }

  private static Object parse(Path file) throws UserError {
    try {
      return new Yaml(new SafeConstructor()).load(Files.readString(file));
    } catch (YAMLException e) {
      throw new UserError(file + ": not YAML: " + OneLineErrors.oneLine(e), e);
    } catch (IOException e) {
      throw new UserError(file + ": cannot be read (isonomy.search_space): " + OneLineErrors.oneLine(e), e);
    }
  }

  private static void checkParameter(String where, String name, Object value) throws UserError {
    UserError.when(!name.matches("[A-Za-z_][A-Za-z0-9_-]*"), where + "a name has letters, digits, '_' and '-' only");
    if (!(value instanceof Map<?, ?> spec)) {
      throw new UserError(where + "write {type: float|int|choice, ...}");
    }
    Object type = spec.get("type");
    Set<String> known = type instanceof String text ? KEYS.get(text) : null;
    UserError.when(known == null, where + "type is '" + type + "'; it must be float, int or choice");
    for (Object key : spec.keySet()) {
      UserError.when(!known.contains(key),
          where + "unknown key '" + key + "'; " + type + " has " + new TreeSet<>(known));
    }
    if (type.equals("choice")) {
      checkValues(where, spec.get("values"));
    } else {
      checkRange(where, type.equals("int"), spec);
    }
  }

  private static void checkValues(String where, Object values) throws UserError {
    if (!(values instanceof List<?> list) || list.isEmpty()) {
      throw new UserError(where + "'values' must be a list with at least one value");
    }
    for (Object value : list) {
      if (!(value instanceof String || value instanceof Number || value instanceof Boolean)) {
        throw new UserError(where + "'" + value + "' is no plain value");
      }
    }
  }

  private static void checkRange(String where, boolean whole, Map<?, ?> spec) throws UserError {
    double min = number(where, "min", whole, spec.get("min"));
    double max = number(where, "max", whole, spec.get("max"));
    UserError.when(min > max, where + "min " + spec.get("min") + " is above max " + spec.get("max"));
    Object log = spec.get("log");
    if (log != null && !(log instanceof Boolean)) {
      throw new UserError(where + "'log' must be true or false");
    }
    UserError.when(Boolean.TRUE.equals(log) && min <= 0, where + "with 'log: true' min must be above 0");
  }

  /** A number, also from a string, because YAML reads 1e-3 as one. */
  private static double number(String where, String key, boolean whole, Object value) throws UserError {
    double number;
    try {
      number = value instanceof Number n ? n.doubleValue() : Double.parseDouble(String.valueOf(value));
    } catch (NumberFormatException e) {
      throw new UserError(where + "'" + key + "' must be a number, not '" + value + "'", e);
    }
    UserError.when(!Double.isFinite(number) || whole && number != Math.rint(number),
        where + "'" + key + "' must be a " + (whole ? "whole " : "finite ") + "number");
    return number;
  }
}
